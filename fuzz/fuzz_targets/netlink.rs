//! What the kernel answers by netlink, the text in which a capture keeps it, and addresses: what a container's
//! annotation or hook says of them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use onload_core::hook_arguments::{Given, MovedInterface, MovedRdma};
use onload_core::netdev::address::{InterfaceAddress, Network};
use onload_core::netdev::settings::Route;
use onload_core::netdev::usage::{Beside, Namespace};
use onload_core::vf::GivenVf;

fuzz_target!(|bytes: &[u8]| {
    onload_sys::netlink::fuzz(bytes);
    onload_host::watch::fuzz(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(namespace) = Namespace::parse(text) {
        let again = Namespace::parse(&namespace.to_text());
        assert_eq!(again.as_ref(), Ok(&namespace));
        let masked = namespace.masked();
        for (link, same) in namespace.links.iter().zip(&masked.links) {
            let uses = namespace.uses(link, Beside::default()).len();
            assert_eq!(uses, masked.uses(same, Beside::default()).len());
        }
    }
    if let Ok(address) = text.parse::<InterfaceAddress>() {
        assert!(address.network().contains(&address));
        assert_eq!(address.to_string().parse(), Ok(address));
    }
    if let Ok(network) = text.parse::<Network>() {
        assert_eq!(network.to_string().parse(), Ok(network));
    }
    if let Ok(moved) = text.parse::<MovedInterface>() {
        assert_eq!(moved.to_string().parse(), Ok(moved));
    }
    if let Ok(moved) = text.parse::<MovedRdma>() {
        assert_eq!(moved.to_string().parse(), Ok(moved));
    }
    if let Ok(given) = text.parse::<Given<InterfaceAddress>>() {
        assert_eq!(given.to_string().parse(), Ok(given));
    }
    if let Ok(given) = text.parse::<Given<Route>>() {
        assert_eq!(given.to_string().parse(), Ok(given));
    }
    if let Ok(given) = text.parse::<GivenVf>() {
        assert_eq!(given.to_string().parse(), Ok(given));
    }
});
