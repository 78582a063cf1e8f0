//! The directories in which engines read specifications.

use std::path::{Path, PathBuf};

use onload_cdi::DEFAULT_DIRS;

use crate::host::{Host, HostError};

/// Limit for links to a path that does not exist yet.
const MAX_LINKS: u32 = 40;

/// Returns the directories, with links resolved inside the host and in order of increasing priority. They need not
/// exist.
pub fn engine_dirs(host: &Host) -> Result<Vec<PathBuf>, HostError> {
    let dirs = DEFAULT_DIRS.into_iter().map(|dir| {
        let dir = Path::new(dir);
        Ok(if host.is_running() {
            host.outside_path(dir)
        } else {
            host.outside_path(&resolve_path(host, dir, MAX_LINKS)?)
        })
    });
    dirs.collect()
}

pub fn resolve_dirs(host: &Host, dirs: &[PathBuf]) -> Result<Vec<PathBuf>, HostError> {
    match dirs {
        [] => engine_dirs(host),
        dirs => Ok(dirs.to_vec()),
    }
}

/// Resolves the links in the existing part of a path. For example `/var/run` links to `/run`, which outside of the host
/// is another directory.
fn resolve_path(host: &Host, path: &Path, links: u32) -> Result<PathBuf, HostError> {
    if let Some(resolved) = host.resolve(path)? {
        return Ok(resolved);
    }
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(path.to_owned());
    };
    let above = resolve_path(host, above, links)?;
    match host.link(&above.join(name))? {
        Some(target) if links > 0 => resolve_path(host, &above.join(target), links - 1),
        _ => Ok(above.join(name)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn dirs(root: &Path) -> Vec<PathBuf> {
        let dirs = engine_dirs(&Host::open(root).unwrap()).unwrap();
        dirs.iter().map(|dir| dir.strip_prefix(root).unwrap()).map(Path::to_owned).collect()
    }

    #[test]
    fn links_are_followed_inside_the_host_whether_the_directory_exists_or_not() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let plain = ["etc/cdi", "var/run/cdi"].map(PathBuf::from);
        assert_eq!(dirs(root.path()), plain);
        fs::create_dir(at("var")).unwrap();
        symlink("/run", at("var/run")).unwrap();
        let followed = ["etc/cdi", "run/cdi"].map(PathBuf::from);
        assert_eq!(dirs(root.path()), followed, "there is no /run yet");
        fs::create_dir(at("run")).unwrap();
        assert_eq!(dirs(root.path()), followed, "there is no /run/cdi yet");
        fs::create_dir(at("run/cdi")).unwrap();
        assert_eq!(dirs(root.path()), followed);
        fs::remove_dir(at("run/cdi")).unwrap();
        symlink("../srv/cdi", at("run/cdi")).unwrap();
        let elsewhere = ["etc/cdi", "srv/cdi"].map(PathBuf::from);
        assert_eq!(dirs(root.path()), elsewhere);
    }

    #[test]
    fn links_that_lead_in_a_circle_are_an_error() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("var")).unwrap();
        symlink("run", root.path().join("var/run")).unwrap();
        assert!(engine_dirs(&Host::open(root.path()).unwrap()).is_err());
    }
}
