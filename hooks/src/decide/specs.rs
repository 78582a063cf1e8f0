//! The specifications that the entry points read: trusted files `onload.dev-*.json` in the two
//! default directories, of a kind `onload.dev/<class>`. Only the requested classes are parsed
//! completely.

use std::path::Path;

use onload_cdi::{
    DEFAULT_DIRS, DeviceName, Kind, LoadError, MAX_FILE_BYTES, NameError, QualifiedName, Registry,
    ResolvedDevice, SpecSource,
};
use onload_core::class::Class;
use onload_core::expectation::{Expectation, ExpectedDevice};
use onload_core::hook_arguments::HookArguments;
use onload_core::request::{DeviceRef, Origin, Request};
use onload_sys::error::{Context, Error, Result, error};
use onload_sys::fs::trust::{TrustError, TrustedTree};
use onload_sys::text::{ErrorChain, Quoted, ShortList};
use serde::Deserialize;

/// Maximum number of files `onload.dev-*` in one directory. There are two for each class: its
/// devices and its pools.
const MAX_FILES: usize = 256;

#[derive(Debug, Default)]
pub struct OnloadSpecs {
    registry: Registry,
}

#[derive(Deserialize)]
struct KindOnly {
    kind: Option<String>,
}

impl OnloadSpecs {
    #[must_use]
    pub fn from_sources(sources: Vec<SpecSource>) -> Self {
        OnloadSpecs { registry: Registry::from_sources(sources) }
    }

    /// Reads the specifications of some classes. An untrusted directory or file with our name is an
    /// error. A file that cannot be parsed affects only containers that request something it might
    /// offer.
    pub(crate) fn read(trusted: &TrustedTree, classes: &[Class]) -> Result<Self, TrustError> {
        let mut sources = Vec::new();
        for (priority, dir) in DEFAULT_DIRS.iter().enumerate() {
            let dir = match trusted.open_dir(Path::new(dir)) {
                Ok(dir) => dir,
                Err(error) if error.is_absent() => continue,
                Err(error) => return Err(error),
            };
            for name in dir.list_names(is_onload_spec, MAX_FILES)? {
                let file = dir.open(&name)?;
                let path = file.path.clone();
                let bytes = file.read(MAX_FILE_BYTES)?;
                if let Some(content) = parse(&bytes, classes) {
                    sources.push(SpecSource { path, priority, content });
                }
            }
        }
        Ok(OnloadSpecs::from_sources(sources))
    }

    /// Returns the requested devices by class, and in the order of the request.
    pub fn resolve(&self, request: &Request) -> Result<Vec<SpecEntry<'_>>> {
        let mut entries = Vec::new();
        for (class, entry) in &request.devices {
            for DeviceRef { name, .. } in &entry.value {
                let qualified =
                    qualified_name(*class, name).with_context(|| entry.origin.to_string())?;
                let Some(resolved) = self.registry.device(&qualified) else {
                    return Err(self.unknown_error(*class, &entry.origin, name));
                };
                entries.push(SpecEntry { class: *class, origin: entry.origin.clone(), resolved });
            }
        }
        Ok(entries)
    }

    pub(crate) fn find(&self, class: Class, name: &str) -> Option<ResolvedDevice<'_>> {
        self.registry.device(&qualified_name(class, name).ok()?)
    }

    #[must_use]
    pub fn merge_edits(&self, entries: &[SpecEntry<'_>]) -> onload_cdi::ContainerEdits {
        let names: Vec<QualifiedName> = entries.iter().map(|e| e.resolved.name.clone()).collect();
        // This cannot fail: the registry resolved every name before.
        self.registry.edits_for(&names).unwrap_or_default()
    }

    fn devices_of_class(&self, class: Class) -> impl Iterator<Item = ResolvedDevice<'_>> {
        let kind = class.cdi_kind();
        self.registry.devices().filter(move |device| device.name.kind.as_str() == kind)
    }

    /// Returns the names of the devices of a class, without pools and names for several devices or none.
    pub(crate) fn device_names(&self, class: Class) -> Vec<String> {
        self.devices_of_class(class)
            .filter(|resolved| resolved.device.annotations.is_empty())
            .map(|resolved| resolved.name.device.to_string())
            .filter(|name| !["all", "loopback"].contains(&name.as_str()))
            .collect()
    }

    fn unknown_error(&self, class: Class, origin: &Origin, name: &str) -> Error {
        let quoted = Quoted(name);
        if class.is_iommu_group()
            && let Some(group) = self.devices_of_class(class).find(|resolved| {
                expectations(resolved).iter().any(|expect| {
                    matches!(&expect.device, ExpectedDevice::Vfio { pci } if pci.to_string() == name)
                })
            })
        {
            let device = &group.name.device;
            return error!("{origin}: {quoted} is in the group of {device}; request {device}");
        }
        let names: Vec<String> =
            self.devices_of_class(class).map(|resolved| resolved.name.device.to_string()).collect();
        let offered = if names.is_empty() && self.registry.errors().is_empty() {
            format!(
                "nothing, because {1} has no specification of {0}; \"onload-ctk discover \
                 --explain\" says why",
                class.cdi_kind(),
                DEFAULT_DIRS.join(" or ")
            )
        } else {
            ShortList(&names).to_string()
        };
        let problems = self.describe_problems();
        error!("{origin}: there is no {class} {quoted}; offered: {offered}{problems}")
    }

    /// Describes the errors of up to three files, each after a semicolon.
    pub(crate) fn describe_problems(&self) -> String {
        self.registry
            .errors()
            .iter()
            .take(3)
            .map(|(path, errors)| {
                let errors: Vec<String> =
                    errors.iter().map(|error| ErrorChain(error).to_string()).collect();
                format!("; {}: {}", path.display(), errors.join("; "))
            })
            .collect()
    }
}

fn is_onload_spec(name: &[u8]) -> bool {
    name.starts_with(b"onload.dev-") && name.ends_with(b".json")
}

fn qualified_name(class: Class, name: &str) -> Result<QualifiedName, NameError> {
    Ok(QualifiedName {
        kind: Kind::try_from(class.cdi_kind())?,
        device: DeviceName::try_from(name)?,
    })
}

/// Returns the file's specification if its kind is wanted, or the error if its kind may be wanted.
fn parse(bytes: &[u8], classes: &[Class]) -> Option<Result<onload_cdi::Spec, LoadError>> {
    let kind = match serde_json::from_slice(bytes) {
        Ok(KindOnly { kind }) => kind?,
        Err(error) => return Some(Err(LoadError::Other(error.into()))),
    };
    if classes.iter().all(|class| class.cdi_kind() != kind) {
        return None;
    }
    Some(onload_cdi::from_json(bytes).map_err(LoadError::from))
}

#[derive(Debug)]
pub struct SpecEntry<'a> {
    pub class: Class,
    /// The place of the request.
    pub origin: Origin,
    pub resolved: ResolvedDevice<'a>,
}

/// Returns the expectations that the entry passes to the hook.
pub(crate) fn expectations(resolved: &ResolvedDevice<'_>) -> Vec<Expectation> {
    let mut expectations = Vec::new();
    let shared = &resolved.spec.container_edits.hooks;
    for hook in shared.iter().chain(&resolved.device.container_edits.hooks) {
        let [_, stage, rest @ ..] = hook.args.as_slice() else {
            continue;
        };
        // The hook of another program does not parse, and expects nothing of our nodes.
        if (stage == "createRuntime" || stage == "prestart")
            && let Ok(arguments) = HookArguments::parse(rest)
        {
            expectations.extend(arguments.expect);
        }
    }
    expectations
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_sys::fs::trust::TrustedOwners;
    use onload_test_tree::Tree;
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    const VFIO: &str = r#"{"cdiVersion":"0.5.0","kind":"onload.dev/vfio","devices":[{"name":"0000:81:10.0","containerEdits":{
        "deviceNodes":[{"path":"/dev/vfio/15"}],
        "hooks":[{"hookName":"createRuntime","path":"/usr/bin/onload-hook","args":["onload-hook","createRuntime","--memlock","unlimited",
          "--expect","/dev/vfio/15=vfio:0000:81:10.0","--expect","/dev/vfio/15=vfio:0000:81:10.2"],"env":["PATH=/usr/bin"]}]}}]}"#;
    const RDMA: &str = r#"{"cdiVersion":"0.3.0","kind":"onload.dev/rdma","devices":[
        {"name":"all","containerEdits":{"deviceNodes":[{"path":"/dev/infiniband/uverbs0"}]}},
        {"name":"mlx5_0","containerEdits":{"deviceNodes":[{"path":"/dev/infiniband/uverbs0"}]}}]}"#;

    struct SpecTree(Tree);

    impl SpecTree {
        fn new(files: &[(&str, &str)]) -> Self {
            let tree = Tree::with(files);
            tree.directory("etc/cdi").directory("var/run/cdi");
            SpecTree(tree)
        }

        fn chmod(&self, path: &str, mode: u32) {
            self.0.chmod(path, mode);
        }

        fn read(&self, wanted: &[Class]) -> Result<OnloadSpecs, TrustError> {
            let owner = fs::metadata(self.0.root()).unwrap().uid();
            OnloadSpecs::read(
                &TrustedTree::for_tree(self.0.root(), TrustedOwners::from_users(&[owner])).unwrap(),
                wanted,
            )
        }
    }

    fn request(class: &str, names: &str) -> Request {
        let all = BTreeMap::from([(format!("onload.dev/{class}"), names.to_owned())]);
        Request::parse(&all).unwrap().unwrap()
    }

    fn refusal(specs: &OnloadSpecs, class: &str, names: &str) -> String {
        specs.resolve(&request(class, names)).unwrap_err().to_string()
    }

    #[test]
    fn names_are_resolved_in_the_order_asked_for() {
        let specs = SpecTree::new(&[("var/run/cdi/onload.dev-rdma.json", RDMA)])
            .read(&[Class::Rdma])
            .unwrap();
        let request = request("rdma", "mlx5_0,all");
        let names: Vec<String> =
            specs.resolve(&request).unwrap().iter().map(|e| e.resolved.name.to_string()).collect();
        assert_eq!(names, ["onload.dev/rdma=mlx5_0", "onload.dev/rdma=all"]);
        assert_eq!(specs.merge_edits(&specs.resolve(&request).unwrap()).device_nodes.len(), 2);
    }

    #[test]
    fn an_unknown_name_is_answered_with_what_is_offered() {
        let specs =
            SpecTree::new(&[("etc/cdi/onload.dev-rdma.json", RDMA)]).read(&[Class::Rdma]).unwrap();
        assert_eq!(
            refusal(&specs, "rdma", "none"),
            "annotation \"onload.dev/rdma\": there is no rdma \"none\"; offered: all, mlx5_0"
        );
        assert!(refusal(&specs, "nic", "all").contains("offered: nothing"));
    }

    #[test]
    fn where_a_class_offers_nothing_the_answer_says_who_knows_why() {
        let specs = SpecTree::new(&[]).read(&[Class::Nic]).unwrap();
        assert_eq!(
            refusal(&specs, "nic", "all"),
            "annotation \"onload.dev/nic\": there is no nic \"all\"; offered: nothing, because \
             /etc/cdi or /var/run/cdi has no specification of onload.dev/nic; \"onload-ctk \
             discover --explain\" says why"
        );
        let broken = SpecTree::new(&[("etc/cdi/onload.dev-nic.json", "{")]);
        let message = refusal(&broken.read(&[Class::Nic]).unwrap(), "nic", "all");
        assert!(!message.contains("no specification of"), "{message}");
    }

    #[test]
    fn an_alias_is_answered_with_the_right_name() {
        let specs =
            SpecTree::new(&[("etc/cdi/onload.dev-vfio.json", VFIO)]).read(&[Class::Vfio]).unwrap();
        assert_eq!(
            refusal(&specs, "vfio", "0000:81:10.2"),
            "annotation \"onload.dev/vfio\": \"0000:81:10.2\" is in the group of 0000:81:10.0; request 0000:81:10.0"
        );
    }

    #[test]
    fn an_operator_s_file_of_our_kind_is_read_whatever_its_name() {
        let specs =
            SpecTree::new(&[("etc/cdi/onload.dev-mine.json", RDMA)]).read(&[Class::Rdma]).unwrap();
        assert!(specs.resolve(&request("rdma", "mlx5_0")).is_ok());
    }

    #[test]
    fn a_second_file_of_a_kind_adds_its_devices_and_a_broken_one_takes_none() {
        const POOLS: &str = r#"{"cdiVersion":"0.6.0","kind":"onload.dev/rdma","devices":[{"name":"any",
            "annotations":{"onload.dev/pool-members":"mlx5_0","onload.dev/pool-share":"1"},
            "containerEdits":{"env":["A=b"]}}]}"#;
        let read = |pools: &str| {
            let files = [
                ("var/run/cdi/onload.dev-rdma.json", RDMA),
                ("var/run/cdi/onload.dev-rdma-pools.json", pools),
            ];
            SpecTree::new(&files).read(&[Class::Rdma]).unwrap()
        };
        let both = read(POOLS);
        assert!(both.resolve(&request("rdma", "mlx5_0,all,any")).is_ok());
        let broken = read("{");
        assert!(broken.resolve(&request("rdma", "mlx5_0,all")).is_ok());
        let message = refusal(&broken, "rdma", "any");
        assert!(
            message.contains("offered: all, mlx5_0; /var/run/cdi/onload.dev-rdma-pools.json: EOF"),
            "{message}"
        );
    }

    #[test]
    fn files_of_other_names_formats_and_kinds_are_not_read() {
        let other = RDMA.replace("onload.dev/rdma", "example.com/rdma");
        let specs = SpecTree::new(&[
            ("etc/cdi/rdma.json", RDMA),
            ("etc/cdi/onload.dev-rdma.yaml", RDMA),
            ("etc/cdi/onload.dev-other.json", &other),
        ])
        .read(&[Class::Rdma])
        .unwrap();
        assert!(refusal(&specs, "rdma", "mlx5_0").contains("offered: nothing"));
    }

    #[test]
    fn a_broken_file_hurts_only_who_misses_its_devices() {
        let specs = SpecTree::new(&[
            ("etc/cdi/onload.dev-rdma.json", RDMA),
            ("etc/cdi/onload.dev-nic.json", "{\"kind\":"),
        ])
        .read(&[Class::Rdma, Class::Nic])
        .unwrap();
        assert!(specs.resolve(&request("rdma", "all")).is_ok());
        let message = refusal(&specs, "nic", "all");
        assert!(message.contains("onload.dev-nic.json: EOF"), "{message}");
    }

    #[test]
    fn a_file_or_directory_that_others_can_write_is_refused() {
        for path in ["etc/cdi/onload.dev-rdma.json", "etc/cdi", "etc", "var/run/cdi", "var/run"] {
            let tree = SpecTree::new(&[("etc/cdi/onload.dev-rdma.json", RDMA)]);
            tree.chmod(path, 0o777);
            let message = ErrorChain(&tree.read(&[Class::Rdma]).unwrap_err()).to_string();
            assert!(message.contains("others can change it"), "{path}: {message}");
        }
    }
}
