//! Checks that only root can have changed the specifications that engines read. Like our runtime, this plugin uses no
//! others, since it creates mounts from them.

use std::path::{Path, PathBuf};

use anyhow::Result;
use onload_cdi::DEFAULT_DIRS;
use onload_host::host::Host;
use onload_host::spec_index::SpecFiles;
use onload_host::specdir::{FILE_PREFIX, engine_dirs};

/// Returns why no file of the toolkit in these directories may be used, or `None` if all may. `files` are those that a survey
/// found there. Directories that the operator named to this plugin are not checked: no engine reads them.
pub fn untrusted_reason(host: &Host, dirs: &[PathBuf], files: &SpecFiles) -> Option<String> {
    let are_engines = engine_dirs(host).is_ok_and(|engines| engines == dirs);
    let judged = are_engines.then(|| check_trust(host, dirs, files))?;
    judged.err().map(|error| format!("{error:#}"))
}

fn check_trust(host: &Host, dirs: &[PathBuf], files: &SpecFiles) -> Result<()> {
    let trusted = host.trusted()?;
    for (default_dir, outside_dir) in DEFAULT_DIRS.iter().zip(dirs) {
        let dir = match trusted.open_dir(Path::new(default_dir)) {
            Err(error) if error.is_absent() => continue,
            dir => dir?,
        };
        let names = files
            .paths()
            .filter(|path| path.parent() == Some(outside_dir))
            .filter_map(Path::file_name);
        for name in names.filter(|name| name.as_encoded_bytes().starts_with(FILE_PREFIX.as_bytes()))
        {
            match dir.open(name) {
                // The file was removed in the meantime.
                Err(error) if error.is_absent() => {}
                file => drop(file?),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A host with a specification in the first directory.
    fn host() -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        for dir in ["etc", "etc/cdi"] {
            fs::create_dir(root.path().join(dir)).unwrap();
            allow(root.path(), dir, 0o755);
        }
        fs::write(root.path().join("etc/cdi/onload.dev-nic.json"), "{}").unwrap();
        allow(root.path(), "etc/cdi/onload.dev-nic.json", 0o644);
        let host = Host::open(root.path()).unwrap();
        (root, host)
    }

    fn allow(root: &Path, path: &str, mode: u32) {
        fs::set_permissions(root.join(path), Permissions::from_mode(mode)).unwrap();
    }

    fn trust_reason(host: &Host) -> Option<String> {
        let dirs = engine_dirs(host).unwrap();
        untrusted_reason(host, &dirs, &host.spec_index().scan(&dirs).1)
    }

    #[test]
    fn specifications_that_root_alone_could_change_count() {
        let (root, host) = host();
        assert_eq!(trust_reason(&host), None);
        fs::write(root.path().join("etc/cdi/other.json"), "{}").unwrap();
        allow(root.path(), "etc/cdi/other.json", 0o666);
        assert_eq!(trust_reason(&host), None, "it is not our file");
    }

    #[test]
    fn what_others_could_change_is_named_with_what_to_do() {
        for (path, mode) in
            [("etc/cdi", 0o1777), ("etc", 0o775), ("etc/cdi/onload.dev-nic.json", 0o664)]
        {
            let (root, host) = host();
            allow(root.path(), path, mode);
            let wanted = format!(
                "\"/{path}\" has mode {mode:04o}, so others can change it; `chmod go-w` it"
            );
            assert_eq!(trust_reason(&host), Some(wanted));
        }
    }

    #[test]
    fn a_link_in_the_place_of_a_specification_is_refused() {
        let (root, host) = host();
        symlink("other.json", root.path().join("etc/cdi/onload.dev-vfio.json")).unwrap();
        assert!(trust_reason(&host).is_some());
    }

    #[test]
    fn directories_that_the_operator_named_are_the_operators_business() {
        let (root, host) = host();
        allow(root.path(), "etc/cdi", 0o1777);
        let files = SpecFiles::default();
        assert_eq!(untrusted_reason(&host, &[root.path().join("cdi")], &files), None);
    }
}
