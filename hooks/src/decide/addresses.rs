//! The addresses that a container asks for: its interfaces get them from the hook that moves them.

use onload_cdi::ContainerEdits;
use onload_core::class::Class;
use onload_core::hook_arguments::{HookArguments, InterfaceValue};
use onload_core::netdev::address::InterfaceAddress;
use onload_core::request::{DeviceValue, Request};
use onload_sys::error::{Result, bail};
use onload_sys::text::Quoted;

/// Puts the addresses of a request, whose pools are replaced by members, into the hooks that move the
/// interfaces. They replace those of the operator's configuration.
pub(super) fn set(edits: &mut ContainerEdits, request: &Request) -> Result<()> {
    let Some(entry) = &request.addresses else {
        return Ok(());
    };
    let mut set: Vec<&DeviceValue<InterfaceAddress>> = Vec::new();
    for hook in &mut edits.hooks {
        let Some((_, mut arguments)) = HookArguments::from_command(&hook.args) else {
            continue;
        };
        // The hook of one device names one interface.
        let [interface_argument] = arguments.netdev.as_slice() else {
            continue;
        };
        let interface = interface_argument.name.clone();
        let Some(device) = arguments.lease.iter().find(|device| device.class == Class::Netdev)
        else {
            continue;
        };
        let own_values: Vec<&DeviceValue<InterfaceAddress>> =
            entry.value.iter().filter(|value| value.name == device.name.as_str()).collect();
        if own_values.is_empty() {
            continue;
        }
        arguments.address = own_values
            .iter()
            .map(|value| InterfaceValue { interface: interface.clone(), value: value.value })
            .collect();
        arguments.replace_in(&mut hook.args);
        set.extend(own_values);
    }
    for value in &entry.value {
        if !set.contains(&value) {
            bail!(
                "{}: nothing moves {} into the container, so no address can be set; a CNI plugin moves it and sets its address, or onload-hook was missing when the specification was written: install it, and run `onload-ctk cdi generate`",
                entry.origin,
                Quoted(&value.name)
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use onload_cdi::Hook;

    use super::*;

    fn hook(args: &[&str]) -> Hook {
        let args = ["onload-hook", "createRuntime"].iter().chain(args);
        Hook {
            hook_name: "createRuntime".into(),
            path: "/usr/bin/onload-hook".to_owned(),
            args: args.map(ToString::to_string).collect(),
            ..Hook::default()
        }
    }

    fn request(netdev: &str, address: &str) -> Request {
        let annotations = BTreeMap::from([
            ("onload.dev/netdev".to_owned(), netdev.to_owned()),
            ("onload.dev/address".to_owned(), address.to_owned()),
        ]);
        Request::parse(&annotations).unwrap().unwrap()
    }

    fn edits() -> ContainerEdits {
        let device_edits = |name: &str, pci: &str| {
            let (lease, moved) = (format!("netdev:{name}"), format!("{name}@{pci}"));
            let address = format!("{name}=198.51.100.1/24");
            hook(&["--lease", &lease, "--netdev", &moved, "--address", &address])
        };
        ContainerEdits {
            hooks: vec![
                device_edits("ens1", "0000:3b:00.0"),
                device_edits("ens2", "0000:3b:00.1"),
                hook(&["--memlock", "unlimited"]),
            ],
            ..ContainerEdits::default()
        }
    }

    #[test]
    fn an_address_replaces_those_of_the_specification_for_that_interface_alone() {
        let mut given = edits();
        set(&mut given, &request("ens1,ens2", "ens2=192.0.2.2/24,ens2=2001:db8::2/64")).unwrap();
        let untouched = edits();
        assert_eq!(given.hooks[0], untouched.hooks[0]);
        assert_eq!(given.hooks[2], untouched.hooks[2]);
        let words = [
            "onload-hook",
            "createRuntime",
            "--lease",
            "netdev:ens2",
            "--netdev",
            "ens2@0000:3b:00.1",
            "--address",
            "ens2=192.0.2.2/24",
            "--address",
            "ens2=2001:db8::2/64",
        ];
        assert_eq!(given.hooks[1].args, words);
        // Twice gives what once gives.
        let once = given.clone();
        set(&mut given, &request("ens1,ens2", "ens2=192.0.2.2/24,ens2=2001:db8::2/64")).unwrap();
        assert_eq!(given, once);
    }

    #[test]
    fn an_address_for_what_does_not_move_is_refused() {
        let mut given = ContainerEdits {
            hooks: vec![hook(&["--lease", "netdev:ens1"])],
            ..ContainerEdits::default()
        };
        let error = set(&mut given, &request("ens1", "ens1=192.0.2.2/24")).unwrap_err();
        let message = error.to_string();
        let begins = "annotation \"onload.dev/address\": nothing moves \"ens1\" into the container";
        assert!(message.starts_with(begins), "{message}");
    }
}
