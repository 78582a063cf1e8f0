//! Lines between GPUs and the NICs in their aliases, next to the cards of a panel: one per NIC, in lanes, so that
//! adjacent lines do not touch.

use std::collections::BTreeMap;

use onload_core::class::Class;

use super::canvas::{Canvas, Rect, Shape};
use super::model::TopologyFunction;

pub(super) const LANE: i32 = 10;
/// A NIC without a free lane is named only on its GPU's card.
const MAX_LANES: usize = 8;
const WIDTH: i32 = 2;
/// From a card's upper edge to where its line begins.
const DOWN: i32 = 21;

/// Vertical offset of the first line.
#[derive(Debug, Default)]
pub(super) struct CardAnchors {
    nics: BTreeMap<String, i32>,
    /// The heights of the GPUs of an RDMA device.
    gpus: BTreeMap<String, Vec<i32>>,
}

impl CardAnchors {
    pub(super) fn add(&mut self, function: &TopologyFunction, top: i32) {
        let y = top + DOWN;
        let rdma = function.devices.iter().filter(|device| device.class == Class::Rdma);
        self.nics.extend(rdma.map(|device| (device.name.clone(), y)));
        for name in function.gpu.iter().flat_map(|gpu| &gpu.rdma) {
            self.gpus.entry(name.clone()).or_default().push(y);
        }
    }

    /// The ends of each line: its NIC's, and those of the GPUs on the same panel. The lane is the first that is free there.
    fn lines(&self) -> Vec<(usize, Vec<i32>)> {
        let mut pairs: Vec<Vec<i32>> = self
            .gpus
            .iter()
            .filter_map(|(name, gpus)| {
                let mut ends = gpus.clone();
                ends.push(*self.nics.get(name)?);
                ends.sort_unstable();
                Some(ends)
            })
            .collect();
        pairs.sort();
        let mut lowest: Vec<i32> = Vec::new();
        let mut lines = Vec::new();
        for ends in pairs {
            let (first, last) = (ends[0], ends[ends.len() - 1]);
            let lane = lowest.iter().position(|lowest| *lowest < first).unwrap_or(lowest.len());
            if lane >= MAX_LANES {
                continue;
            }
            match lowest.get_mut(lane) {
                Some(lowest) => *lowest = last,
                None => lowest.push(last),
            }
            lines.push((lane, ends));
        }
        lines
    }
}

/// How many lanes there are.
pub(super) fn count_lanes(cards: &CardAnchors) -> i32 {
    let lanes = cards.lines().into_iter().map(|(lane, _)| lane + 1).max();
    i32::try_from(lanes.unwrap_or(0)).unwrap_or(0)
}

pub(super) fn draw(canvas: &mut Canvas, panel: usize, right: i32, cards: &CardAnchors) {
    for (lane, ends) in cards.lines() {
        let x = right + (i32::try_from(lane).unwrap_or(0) + 1) * LANE;
        let (first, last) = (ends[0], ends[ends.len() - 1]);
        let mut line = |rect| {
            canvas.add(Some(panel), rect, Shape::Pair);
        };
        for y in &ends {
            line(Rect::new(right, *y, x - right, WIDTH));
        }
        line(Rect::new(x, first, WIDTH, last - first + WIDTH));
    }
}
