//! A NUMA node as a panel: its CPUs, memory and huge pages, and the PCIe trees below it.

use super::canvas::{Canvas, Rect, Shape, TextStyle};
use super::card;
use super::gpu_nic_lines::{self, CardAnchors};
use super::model::{Bus, NumaMemory, PageTotals, TopologyDevice, TopologyNumaNode};
use onload_sys::cpu_list;

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

/// The text for a node with only memory and CPUs.
pub(super) const NOTHING_HERE: &str = "no NICs or accelerators";

/// Gives its height. The cards are narrower if lines between GPUs and NICs are drawn next to them.
pub(super) fn draw_panel(node: &TopologyNumaNode, width: i32) -> (Canvas, i32) {
    let plain = layout_panel(node, width, 0);
    let lanes = gpu_nic_lines::count_lanes(&plain.cards);
    let mut content = match lanes {
        0 => plain,
        _ => layout_panel(node, width, lanes * gpu_nic_lines::LANE),
    };
    let (panel, right) = (content.panel, content.right);
    gpu_nic_lines::draw(&mut content.canvas, panel, right, &content.cards);
    let height = content.y + PAD - GAP;
    let mut canvas = content.canvas;
    canvas.end(panel, height);
    (canvas, height)
}

fn layout_panel(node: &TopologyNumaNode, width: i32, lane_width: i32) -> PanelContent {
    let mut canvas = Canvas::default();
    let panel = canvas.add(None, Rect::new(0, 0, width, 0), Shape::Panel);
    let mut content = PanelContent {
        canvas,
        panel,
        y: PAD,
        right: width - PAD - lane_width,
        cards: CardAnchors::default(),
    };
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
    content.devices(&node.devices);
    if node.roots.is_empty() && node.devices.is_empty() {
        content.line(NOTHING_HERE);
    }
    content
}

/// Memory in words: `62.8 GiB, 12.1 GiB free`.
pub(super) fn format_memory(memory: &NumaMemory) -> String {
    let gib = |kib: u64| {
        let tenths = kib / (1024 * 1024 / 10);
        format!("{}.{} GiB", tenths / 10, tenths % 10)
    };
    format!("{}, {} free", gib(memory.total_kib), gib(memory.free_kib))
}

struct PanelContent {
    canvas: Canvas,
    panel: usize,
    y: i32,
    right: i32,
    cards: CardAnchors,
}

impl PanelContent {
    fn heading(&mut self, node: &TopologyNumaNode) {
        let (parent, mut room) = (Some(self.panel), self.right - PAD);
        if let Some(memory) = &node.memory {
            let text = format!("memory {}", format_memory(memory));
            let position = (self.right, self.y + 3);
            let style = TextStyle::Detail;
            let memory_rect = self.canvas.add_text_right(parent, position, room / 2, style, &text);
            room -= memory_rect.width + GAP;
        }
        let position = (PAD, self.y);
        let title = node.title();
        let line = self.canvas.add_text(parent, position, room, TextStyle::Heading, &title);
        self.y = line.bottom() + GAP;
    }

    fn line(&mut self, text: &str) {
        let (position, room) = ((PAD, self.y), self.right - PAD);
        let line = self.canvas.add_text(Some(self.panel), position, room, TextStyle::Detail, text);
        self.y = line.bottom() + GAP;
    }

    fn cpus(&mut self, node: &TopologyNumaNode) {
        let Some(list) = &node.cpus else { return };
        let isolated = node.isolated_cpus.as_deref();
        let isolated_text = isolated.map(|isolated| format!(", isolated {isolated}"));
        self.line(&format!("CPUs {list}{}", isolated_text.unwrap_or_default()));
        let cpus = cpu_list::parse_kernel_list(list).unwrap_or_default();
        if cpus.len() > MAX_CPUS {
            return;
        }
        let isolated =
            cpu_list::parse_kernel_list(isolated.unwrap_or_default()).unwrap_or_default();
        let mut x = PAD;
        for cpu in cpus {
            if x + CPU > self.right {
                (x, self.y) = (PAD, self.y + CPU + ROW_GAP);
            }
            let is_isolated = isolated.contains(&cpu);
            let shape = Shape::Cpu { is_isolated };
            let rect = Rect::new(x, self.y, CPU, CPU);
            let item = self.canvas.add(Some(self.panel), rect, shape);
            let kind = if is_isolated { ", isolated" } else { "" };
            self.canvas.add_note(item, &format!("CPU {cpu}{kind}"));
            x += CPU + ROW_GAP;
        }
        self.y += CPU + GAP + 2;
    }

    fn pages(&mut self, pages: &PageTotals) {
        let parent = Some(self.panel);
        let room = self.right - PAD;
        let (style, y) = (TextStyle::Detail, self.y);
        let line = self.canvas.add_text(parent, (PAD, y), LABEL - GAP, style, &pages.name);
        let bar = Rect::new(PAD + LABEL, y + 4, BAR, 10);
        let item = self.canvas.add(parent, bar, Shape::Pages);
        let used = pages.total.saturating_sub(pages.free);
        let share = u128::from(used) * 136 / u128::from(pages.total.max(1));
        let share = i32::try_from(share).unwrap_or(0).clamp(0, BAR - 4);
        if share > 0 {
            let rect = Rect::new(bar.x + 2, bar.y + 2, share, bar.height - 4);
            self.canvas.add(Some(item), rect, Shape::PagesUsed);
        }
        let text = format!("{} of {} huge pages free", pages.free, pages.total);
        let offset = LABEL + BAR + GAP;
        self.canvas.add_text(parent, (PAD + offset, y), room - offset, style, &text);
        self.y = line.bottom() + ROW_GAP;
    }

    fn bus(&mut self, bus: &Bus, left: i32, level: usize) {
        let (indent, top) =
            if level < MAX_LEVELS { (INDENT, self.y - GAP / 2) } else { (0, self.y) };
        let mut last = top;
        for bridge in &bus.bridges {
            last = self.elbow(left, indent, TextStyle::Detail.height() / 2 + 1);
            let link = bridge.link.map(|link| format!(" · {}", link.short()));
            let text = format!("{}{}", bridge.address, link.unwrap_or_default());
            let position = (left + indent + 6, self.y + 2);
            let room = self.right - position.0 - 6;
            let pill = Rect::new(left + indent, self.y, 0, TextStyle::Detail.height() + 4);
            let pill = self.canvas.add(Some(self.panel), pill, Shape::Bridge);
            let text = self.canvas.add_text(Some(pill), position, room, TextStyle::Detail, &text);
            self.canvas.items[pill].rect.width = text.width + 12;
            self.y = text.bottom() + 2 + GAP;
            self.bus(&bridge.bus, left + indent, level + 1);
        }
        for function in &bus.functions {
            last = self.elbow(left, indent, 22);
            let x = left + indent;
            let area = (x, self.y, self.right - x);
            self.cards.add(function, self.y);
            self.y = card::draw_card(&mut self.canvas, self.panel, area, function) + GAP;
        }
        if indent > 0 && last > top {
            let rect = Rect::new(left + 6, top, WIRE, last - top);
            self.canvas.add(Some(self.panel), rect, Shape::Wire);
        }
    }

    fn elbow(&mut self, left: i32, indent: i32, down: i32) -> i32 {
        let y = self.y + down;
        if indent > 0 {
            let rect = Rect::new(left + 6, y, indent - 6, WIRE);
            self.canvas.add(Some(self.panel), rect, Shape::Wire);
        }
        y + WIRE
    }

    fn devices(&mut self, devices: &[TopologyDevice]) {
        if devices.is_empty() {
            return;
        }
        self.y += GAP;
        self.line("not on PCI");
        let labels =
            devices.iter().map(|device| (device, format!("{} {}", device.class, device.name)));
        let area = (PAD, self.y, self.right - PAD);
        self.y = card::draw_chips(&mut self.canvas, self.panel, area, labels) + GAP;
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
