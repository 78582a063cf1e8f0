//! What the kernel answers by netlink, the text in which a capture keeps it, and addresses: what a container's
//! annotation or hook says of them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use onload_core::hook_arguments::{InterfaceValue, NetdevArgument, RdmaArgument};
use onload_core::netdev::address::{InterfaceAddress, Network};
use onload_core::netdev::settings::InterfaceRoute;
use onload_core::netdev::usage::{ExtraUses, NetworkState};
use onload_core::vf_config::VfArgument;

fuzz_target!(|bytes: &[u8]| {
    onload_sys::netlink::fuzz(bytes);
    onload_host::watch::fuzz(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(namespace) = NetworkState::parse(text) {
        let again = NetworkState::parse(&namespace.to_text());
        assert_eq!(again.as_ref(), Ok(&namespace));
        let masked = namespace.mask_addresses();
        for (link, same) in namespace.links.iter().zip(&masked.links) {
            let uses = namespace.describe_uses(link, ExtraUses::default()).len();
            assert_eq!(uses, masked.describe_uses(same, ExtraUses::default()).len());
        }
    }
    if let Ok(address) = text.parse::<InterfaceAddress>() {
        assert!(address.network().contains(&address));
        assert_eq!(address.to_string().parse(), Ok(address));
    }
    if let Ok(network) = text.parse::<Network>() {
        assert_eq!(network.to_string().parse(), Ok(network));
    }
    if let Ok(moved) = text.parse::<NetdevArgument>() {
        assert_eq!(moved.to_string().parse(), Ok(moved));
    }
    if let Ok(moved) = text.parse::<RdmaArgument>() {
        assert_eq!(moved.to_string().parse(), Ok(moved));
    }
    if let Ok(given) = text.parse::<InterfaceValue<InterfaceAddress>>() {
        assert_eq!(given.to_string().parse(), Ok(given));
    }
    if let Ok(given) = text.parse::<InterfaceValue<InterfaceRoute>>() {
        assert_eq!(given.to_string().parse(), Ok(given));
    }
    if let Ok(given) = text.parse::<VfArgument>() {
        assert_eq!(given.to_string().parse(), Ok(given));
    }
});
