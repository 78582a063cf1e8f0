//! The VLANs that a container chooses: the hook that sets up its virtual functions is told of them.

use std::path::Path;

use onload_cdi::ContainerEdits;
use onload_core::hook_arguments::HookArguments;
use onload_core::host_settings::Vlan;
use onload_core::request::{DeviceValue, Request};
use onload_sys::error::{Context as _, Result, bail};
use onload_sys::text::Quoted;

/// Puts the VLANs of a request, whose pools are replaced by members, into the hooks that set up virtual functions. The
/// operator's configuration, in `file`, says from which a container may choose; the specification has it from there.
pub(super) fn set(edits: &mut ContainerEdits, request: &Request, file: &Path) -> Result<()> {
    let Some(entry) = &request.vlans else {
        return Ok(());
    };
    let mut remaining: Vec<&DeviceValue<Vlan>> = entry.value.iter().collect();
    for hook in &mut edits.hooks {
        let Some((_, mut arguments)) = HookArguments::from_command(&hook.args) else {
            continue;
        };
        for argument in &mut arguments.vf {
            let Some(vlan) =
                entry.value.iter().find(|value| value.name == argument.device.name.as_str())
            else {
                continue;
            };
            argument.vf.choose(vlan.value).with_context(|| {
                let hint = "which \"vlans\" in the table vf of its pool or device says in";
                format!("{}: {}, {hint} {file:?}", entry.origin, argument.device)
            })?;
            remaining.retain(|value| *value != vlan);
        }
        if !arguments.vf.is_empty() {
            arguments.replace_in(&mut hook.args);
        }
    }
    match remaining.first() {
        None => Ok(()),
        Some(value) => bail!(
            "{}: {} may choose no VLAN; vlans = \"{}\" in a table vf of its pool, or of its section [netdev.NAME], in {} would allow it, once `systemctl start onload-cdi.service` has run",
            entry.origin,
            Quoted(&value.name),
            value.value,
            file.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use onload_cdi::Hook;

    use super::*;

    const FILE: &str = "/etc/onload-ctk/config.toml";

    fn request(vlan: &str) -> Request {
        let annotations =
            [("onload.dev/vfio", "0000:81:10.0,0000:81:10.1"), ("onload.dev/vlan", vlan)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()));
        Request::parse(&BTreeMap::from(annotations)).unwrap().unwrap()
    }

    fn edits(vf: &str) -> ContainerEdits {
        let hook = |name: &str| {
            let (lease, vf) = (format!("vfio:{name}"), format!("vfio:{name}={vf}"));
            let args = ["onload-hook", "createRuntime", "--lease", &lease, "--vf", &vf];
            Hook {
                hook_name: "createRuntime".into(),
                args: args.map(str::to_owned).to_vec(),
                ..Hook::default()
            }
        };
        ContainerEdits {
            hooks: vec![hook("0000:81:10.0"), hook("0000:81:10.1")],
            ..ContainerEdits::default()
        }
    }

    fn refusal(vf: &str, vlan: &str) -> String {
        let refused = set(&mut edits(vf), &request(vlan), Path::new(FILE));
        format!("{:#}", refused.unwrap_err())
    }

    #[test]
    fn a_vlan_that_may_be_chosen_is_told_to_the_hook_of_that_device_alone() {
        let mut given = edits("vlans=100-199");
        let asked = request("0000:81:10.1=150");
        set(&mut given, &asked, Path::new(FILE)).unwrap();
        assert_eq!(given.hooks[0], edits("vlans=100-199").hooks[0]);
        let own = "vfio:0000:81:10.1=vlan=150;vlans=100-199";
        assert_eq!(given.hooks[1].args[5], own);
        // Twice gives what once gives.
        let once = given.clone();
        set(&mut given, &asked, Path::new(FILE)).unwrap();
        assert_eq!(given, once);
    }

    #[test]
    fn a_vlan_that_may_not_be_chosen_is_refused_with_what_may() {
        let message = refusal("vlan=100;vlans=100-199", "0000:81:10.1=300");
        assert_eq!(
            message,
            "annotation \"onload.dev/vlan\": vfio:0000:81:10.1, which \"vlans\" in the table vf of its pool or \
             device says in \"/etc/onload-ctk/config.toml\": VLAN 300 is not allowed; choose from 100-199"
        );
        let message = refusal("vlan=100", "0000:81:10.1=101");
        assert!(message.ends_with(": it may not choose a VLAN"), "{message}");
        let mut none = ContainerEdits::default();
        let asked = request("0000:81:10.1=101");
        let message = set(&mut none, &asked, Path::new(FILE)).unwrap_err().to_string();
        assert!(
            message.contains("\"0000:81:10.1\" may choose no VLAN; vlans = \"101\""),
            "{message}"
        );
    }
}
