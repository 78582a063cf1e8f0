//! Parses uevents and selects those about devices that discovery reads (`kobject_uevent_env` in lib/kobject_uevent.c).

/// The multicast group of the kernel's messages; udev uses another one (libudev-monitor.c).
pub(super) const GROUP: u32 = 1;
const VIRTUAL: &str = "/devices/virtual/";
/// Subsystems whose devices discovery reads: PCI functions and devices on them. The last three are classes of Onload,
/// each with one device.
const SUBSYSTEMS: [&str; 16] = [
    "auxiliary",
    "infiniband",
    "infiniband_mad",
    "infiniband_verbs",
    "iommu",
    "misc",
    "module",
    "net",
    "pci",
    "pps",
    "ptp",
    "vfio",
    "vfio-dev",
    "onload",
    "onload_epoll",
    "sfc_char",
];

/// Returns whether the result of discovery may change after this message. Virtual interfaces, which are created with
/// every container, are never offered.
pub(super) fn is_relevant(bytes: &[u8]) -> bool {
    parse(bytes).is_some_and(|(path, subsystem)| {
        let is_virtual = path.starts_with(VIRTUAL) && subsystem == "net";
        SUBSYSTEMS.contains(&subsystem) && !is_virtual
    })
}

/// Parses the path and subsystem of a message: `ACTION@PATH`, followed by any number of `KEY=VALUE`, each terminated by
/// a null byte. Returns `None` for udev's messages.
fn parse(bytes: &[u8]) -> Option<(&str, &str)> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\0')?;
    let mut parts = text.split('\0');
    let (_, path) = parts.next()?.split_once('@').filter(|(_, path)| path.starts_with('/'))?;
    let subsystem = parts.find_map(|part| part.strip_prefix("SUBSYSTEM="))?;
    Some((path, subsystem))
}

#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    assert!(parse(bytes).is_none_or(|(path, _)| path.starts_with('/')));
    let _ = is_relevant(bytes);
}

#[cfg(test)]
pub(super) mod tests {
    use super::parse;

    const VF: &str = "/devices/pci0000:80/0000:80:01.0/0000:81:10.0";

    pub(in super::super) fn message(action: &str, path: &str, subsystem: &str) -> Vec<u8> {
        let text = format!(
            "{action}@{path}\0ACTION={action}\0DEVPATH={path}\0SUBSYSTEM={subsystem}\0SEQNUM=4711\0"
        );
        text.into_bytes()
    }

    fn is_relevant(path: &str, subsystem: &str) -> bool {
        super::is_relevant(&message("add", path, subsystem))
    }

    #[test]
    fn a_message_of_the_kernel_is_read() {
        let bytes = message("bind", VF, "pci");
        assert_eq!(parse(&bytes), Some((VF, "pci")));
        // As the kernel sends it, with keys that we do not use and values with "=" in them.
        let whole = b"change@/module/onload\0ACTION=change\0DEVPATH=/module/onload\0SUBSYSTEM=module\0SYNTH_UUID=0\0X=a=b\0SEQNUM=1\0";
        assert_eq!(parse(whole), Some(("/module/onload", "module")));
    }

    #[test]
    fn anything_else_is_no_message_of_the_kernel() {
        let right = message("add", VF, "pci");
        for end in 0..right.len() - 1 {
            // Cut at the end of a line that is not needed it is whole.
            let is_whole = right[..end].ends_with(b"SUBSYSTEM=pci\0");
            assert_eq!(parse(&right[..end]).is_some(), is_whole, "{end}");
        }
        for wrong in [
            &b""[..],
            b"\0",
            b"@\0",
            b"add@/x\0",
            b"add@/x\0ACTION=add\0DEVPATH=/x\0",
            b"add@x\0ACTION=add\0DEVPATH=x\0SUBSYSTEM=pci\0",
            b"add@/\xff\0ACTION=add\0DEVPATH=/\xff\0SUBSYSTEM=pci\0",
            b"libudev\0\xfe\xed\xca\xfe(\0\0\0(\0\0\0",
        ] {
            assert_eq!(parse(wrong), None, "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn devices_that_discovery_looks_at_are_of_interest() {
        assert!(is_relevant(VF, "pci"));
        assert!(is_relevant(&format!("{VF}/net/ens1v0"), "net"));
        assert!(is_relevant("/devices/virtual/infiniband/rxe0", "infiniband"));
        assert!(is_relevant("/devices/virtual/misc/vfio", "misc"));
        assert!(is_relevant("/module/sfc_resource", "module"));
        assert!(is_relevant("/devices/virtual/onload/onload", "onload"));
    }

    #[test]
    fn interfaces_of_containers_and_other_devices_are_not() {
        assert!(!is_relevant("/devices/virtual/net/veth1a2b", "net"));
        assert!(!is_relevant("/devices/virtual/net/veth1a2b/queues/rx-0", "queues"));
        assert!(!is_relevant("/devices/virtual/bdi/0:50", "bdi"));
        assert!(!is_relevant("/kernel/slab/a", "slab"));
        assert!(!is_relevant("/devices/platform/x", "pci "));
    }
}
