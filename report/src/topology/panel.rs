//! A NUMA node as a panel: its CPUs, memory and huge pages, and the PCIe trees below it. Lines between GPUs and the NICs
//! in their aliases are next to the cards: one per NIC, in lanes, so that adjacent lines do not touch.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_sys::cpu_list;

use super::canvas::{Canvas, Rect, Shape, TextStyle};
use super::card;
use super::model::{Bus, NumaMemory, PageTotals, TopologyFunction, TopologyNumaNode};

const PAD: i32 = 18;
const GAP: i32 = 8;
const CPU: i32 = 10;
const ROW_GAP: i32 = 3;
/// CPUs that are drawn one by one; of more only the list is shown.
const MAX_CPUS: usize = 512;
const LABEL: i32 = 48;
const BAR: i32 = 140;
const INDENT: i32 = 20;
const WIRE: i32 = 2;
/// Number of indented levels; deeper ones are not indented further.
const MAX_LEVELS: usize = 6;
const LANE: i32 = 10;
/// A NIC without a free lane is named only on its GPU's card.
const MAX_LANES: usize = 8;
/// From a card's upper edge to where its line begins.
const DOWN: i32 = 21;

/// The text for a node with only memory and CPUs.
pub(super) const NOTHING_HERE: &str = "no NICs or accelerators";

/// Gives its height. The cards are narrower if lines between GPUs and NICs are drawn next to them.
pub(super) fn draw_panel(node: &TopologyNumaNode, width: i32) -> (Canvas, i32) {
    let plain = PanelContent::draw(node, width, 0);
    let lanes = plain.lines().into_iter().map(|(lane, _)| lane + 1).max();
    let mut content = match lanes {
        None => plain,
        Some(lanes) => PanelContent::draw(node, width, lanes * LANE),
    };
    content.draw_lines();
    let height = content.y + PAD - GAP;
    content.canvas.end(0, height);
    (content.canvas, height)
}

/// Memory in words: `62.8 GiB, 12.1 GiB free`.
pub(super) fn format_memory(memory: &NumaMemory) -> String {
    let gib = |kib: u64| {
        let tenths = kib / (1024 * 1024 / 10);
        format!("{}.{} GiB", tenths / 10, tenths % 10)
    };
    format!("{}, {} free", gib(memory.total_kib), gib(memory.free_kib))
}

#[derive(Default)]
struct PanelContent {
    canvas: Canvas,
    y: i32,
    right: i32,
    /// The heights of the RDMA devices' NICs, and of the GPUs of each.
    nics: BTreeMap<String, i32>,
    gpus: BTreeMap<String, Vec<i32>>,
}

impl PanelContent {
    fn draw(node: &TopologyNumaNode, width: i32, lane_width: i32) -> PanelContent {
        let right = width - PAD - lane_width;
        let mut content = PanelContent { y: PAD, right, ..PanelContent::default() };
        content.canvas.add(Rect::new(0, 0, width, 0), Shape::Panel);
        content.heading(node);
        content.cpus(node);
        for pages in &node.hugepages {
            content.pages(pages);
        }
        for root in &node.roots {
            content.y += GAP;
            content.line(&format!("PCIe root {}", root.name));
            content.bus(&root.bus, PAD, 0);
        }
        if !node.devices.is_empty() {
            content.y += GAP;
            content.line("not on PCI");
            let labels = node
                .devices
                .iter()
                .map(|device| (device, format!("{} {}", device.class, device.name)));
            let area = (PAD, content.y, right - PAD);
            content.y = card::draw_chips(&mut content.canvas, area, labels) + GAP;
        } else if node.roots.is_empty() {
            content.line(NOTHING_HERE);
        }
        content
    }

    fn heading(&mut self, node: &TopologyNumaNode) {
        let mut room = self.right - PAD;
        if let Some(memory) = &node.memory {
            let text = format!("memory {}", format_memory(memory));
            let position = (self.right, self.y + 3);
            room -= self.canvas.add_detail_right(position, room / 2, &text).width + GAP;
        }
        let style = TextStyle::Heading;
        let line = self.canvas.add_text((PAD, self.y), room, style, &node.title());
        self.y = line.bottom() + GAP;
    }

    fn line(&mut self, text: &str) {
        let room = self.right - PAD;
        let line = self.canvas.add_text((PAD, self.y), room, TextStyle::Detail, text);
        self.y = line.bottom() + GAP;
    }

    fn cpus(&mut self, node: &TopologyNumaNode) {
        let Some(list) = &node.cpus else { return };
        let isolated = node.isolated_cpus.as_deref();
        let isolated_text = isolated.map(|isolated| format!(", isolated {isolated}"));
        self.line(&format!("CPUs {list}{}", isolated_text.unwrap_or_default()));
        let [cpus, isolated] = [list, isolated.unwrap_or_default()]
            .map(|list| cpu_list::parse_kernel_list(list).unwrap_or_default());
        if cpus.len() > MAX_CPUS {
            return;
        }
        let mut x = PAD;
        for cpu in cpus {
            if x + CPU > self.right {
                (x, self.y) = (PAD, self.y + CPU + ROW_GAP);
            }
            let is_isolated = isolated.contains(&cpu);
            let note = format!("CPU {cpu}{}", if is_isolated { ", isolated" } else { "" });
            let rect = Rect::new(x, self.y, CPU, CPU);
            self.canvas.add_with_note(rect, Shape::Cpu { is_isolated }, &note);
            x += CPU + ROW_GAP;
        }
        self.y += CPU + GAP + 2;
    }

    fn pages(&mut self, pages: &PageTotals) {
        let (style, y) = (TextStyle::Detail, self.y);
        let line = self.canvas.add_text((PAD, y), LABEL - GAP, style, &pages.name);
        let bar = Rect::new(PAD + LABEL, y + 4, BAR, 10);
        self.canvas.add(bar, Shape::Pages);
        let used = pages.total.saturating_sub(pages.free);
        let share = u128::from(used) * 136 / u128::from(pages.total.max(1));
        let share = i32::try_from(share).unwrap_or(0).clamp(0, BAR - 4);
        if share > 0 {
            let rect = Rect::new(bar.x + 2, bar.y + 2, share, bar.height - 4);
            self.canvas.add(rect, Shape::PagesUsed);
        }
        let text = format!("{} of {} huge pages free", pages.free, pages.total);
        let x = PAD + LABEL + BAR + GAP;
        self.canvas.add_text((x, y), self.right - x, style, &text);
        self.y = line.bottom() + ROW_GAP;
    }

    fn bus(&mut self, bus: &Bus, left: i32, level: usize) {
        let (indent, top) =
            if level < MAX_LEVELS { (INDENT, self.y - GAP / 2) } else { (0, self.y) };
        let x = left + indent;
        let mut last = top;
        for bridge in &bus.bridges {
            last = self.elbow(left, indent, TextStyle::Detail.height() / 2 + 1);
            let link = bridge.link.map(|link| format!(" · {}", link.short()));
            let text = format!("{}{}", bridge.address, link.unwrap_or_default());
            let pill = Rect::new(x, self.y, 0, TextStyle::Detail.height() + 4);
            let pill = self.canvas.add(pill, Shape::Bridge);
            let (position, room) = ((x + 6, self.y + 2), self.right - x - 12);
            let text = self.canvas.add_text(position, room, TextStyle::Detail, &text);
            self.canvas.items[pill].rect.width = text.width + 12;
            self.y = text.bottom() + 2 + GAP;
            self.bus(&bridge.bus, x, level + 1);
        }
        for function in &bus.functions {
            last = self.elbow(left, indent, 22);
            self.add_anchors(function);
            let area = (x, self.y, self.right - x);
            self.y = card::draw_card(&mut self.canvas, area, function) + GAP;
        }
        if indent > 0 && last > top {
            self.canvas.add(Rect::new(left + 6, top, WIRE, last - top), Shape::Wire);
        }
    }

    fn elbow(&mut self, left: i32, indent: i32, down: i32) -> i32 {
        let y = self.y + down;
        if indent > 0 {
            self.canvas.add(Rect::new(left + 6, y, indent - 6, WIRE), Shape::Wire);
        }
        y + WIRE
    }

    fn add_anchors(&mut self, function: &TopologyFunction) {
        let y = self.y + DOWN;
        let rdma = function.devices.iter().filter(|device| device.class == Class::Rdma);
        self.nics.extend(rdma.map(|device| (device.name.clone(), y)));
        for name in function.gpu.iter().flat_map(|gpu| &gpu.rdma) {
            self.gpus.entry(name.clone()).or_default().push(y);
        }
    }

    /// The ends of each line: its NIC's, and those of the GPUs on the same panel. The lane is the first that is free there.
    fn lines(&self) -> Vec<(i32, Vec<i32>)> {
        let ends = self.gpus.iter().filter_map(|(name, gpus)| {
            let mut ends = [&gpus[..], &[*self.nics.get(name)?]].concat();
            ends.sort_unstable();
            Some(ends)
        });
        let mut pairs: Vec<Vec<i32>> = ends.collect();
        pairs.sort();
        let mut lowest: Vec<i32> = Vec::new();
        let mut lines = Vec::new();
        for ends in pairs {
            let (first, last) = (ends[0], ends[ends.len() - 1]);
            let lane = lowest.iter().position(|lowest| *lowest < first).unwrap_or(lowest.len());
            if lane >= MAX_LANES {
                continue;
            }
            lowest.resize(lowest.len().max(lane + 1), last);
            lowest[lane] = last;
            lines.push((i32::try_from(lane).unwrap_or(0), ends));
        }
        lines
    }

    fn draw_lines(&mut self) {
        for (lane, ends) in self.lines() {
            let x = self.right + (lane + 1) * LANE;
            let (first, last) = (ends[0], ends[ends.len() - 1]);
            for y in ends {
                self.canvas.add(Rect::new(self.right, y, x - self.right, WIRE), Shape::Pair);
            }
            self.canvas.add(Rect::new(x, first, WIRE, last - first + WIRE), Shape::Pair);
        }
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_in_tenths_of_a_gib() {
        let found = NumaMemory { total_kib: 64 * 1024 * 1024, free_kib: 1024 * 1024 / 2 };
        assert_eq!(format_memory(&found), "64.0 GiB, 0.5 GiB free");
    }
}
