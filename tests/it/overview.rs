//! `onload-ctk` without a command: five lines on every host, the last of which is the next step.

#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::{Commands, Tree, every_host};

/// The five lines, each without its label.
#[track_caller]
fn lines(tree: &Tree) -> [String; 5] {
    let stdout = tree.run(&[]).done().stdout;
    let labels = ["Host", "Devices", "CDI specs", "Engines", "Next step"];
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), labels.len(), "{stdout}");
    let text = |index: usize| {
        let text = lines[index]
            .strip_prefix(labels[index])
            .unwrap_or_else(|| panic!("no {} in {stdout}", labels[index]));
        text.trim_start().to_owned()
    };
    std::array::from_fn(text)
}

#[test]
fn every_host_has_five_lines() {
    for (name, tree) in every_host() {
        let lines = lines(&tree);
        assert!(lines.iter().all(|line| !line.is_empty()), "{name}: {lines:?}");
        assert!(lines[4].contains("onload-ctk "), "{name}: {}", lines[4]);
        // Counts, not lists.
        let lists = lines[..4].iter().filter(|line| line.contains(".json"));
        assert_eq!(lists.count(), 0, "{name}: {lines:?}");
    }
}
