//! The directories of an image in which the host's libraries appear. A specification is written for any
//! image, so it mounts each library in every directory that a loader searches: Debian's multiarch
//! directory and Red Hat's /usr/lib64. Here the image is known: if it has one of them, the other is not
//! created.

use std::ffi::OsStr;
use std::path::Path;

use onload_cdi::Mount;

/// The directories that loaders search by themselves. A directory that the operator names is made.
const SEARCHED: [&str; 3] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];

/// Drops each mount of a library into a searched directory that the image lacks, where another searched
/// directory gets the same library under the same name. `lacks` says whether the image is known not to
/// have a directory.
pub(super) fn leave_absent(mounts: &mut Vec<Mount>, lacks: &dyn Fn(&Path) -> bool) {
    let is_in = |mount: &Mount, dirs: &[&Path]| {
        let dir = Path::new(&mount.container_path).parent();
        dir.is_some_and(|dir| dirs.contains(&dir))
    };
    let searched = SEARCHED
        .map(Path::new)
        .into_iter()
        .filter(|dir| mounts.iter().any(|mount| is_in(mount, &[*dir])));
    let (absent, present): (Vec<&Path>, Vec<&Path>) =
        searched.partition(|dir| is_absent(dir, lacks));
    let mut all_mounts = mounts.clone();
    all_mounts.retain(|mount| is_in(mount, &present));
    mounts.retain(|mount| {
        !is_in(mount, &absent)
            || !all_mounts.iter().any(|other_mount| is_same_file(other_mount, mount))
    });
}

/// Returns whether the image lacks a directory, also outside /usr: if /lib is not a link to usr/lib, an
/// image may have its libraries in /lib, and the loader searches both.
fn is_absent(dir: &Path, lacks: &dyn Fn(&Path) -> bool) -> bool {
    let outside = dir.strip_prefix("/usr").map(|rest| Path::new("/").join(rest));
    lacks(dir) && outside.is_ok_and(|outside| lacks(&outside))
}

fn is_same_file(one: &Mount, other: &Mount) -> bool {
    let name = |mount: &Mount| Path::new(&mount.container_path).file_name().map(OsStr::to_owned);
    one.host_path == other.host_path && name(one) == name(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MULTIARCH: &str = "/usr/lib/x86_64-linux-gnu";

    fn mount(from: &str, to: &str) -> Mount {
        Mount { host_path: from.to_owned(), container_path: to.to_owned(), ..Mount::default() }
    }

    /// What is left of two libraries in two directories each, and a tool, in an image with some
    /// directories.
    fn left(dirs: [&str; 2], image: &[&str]) -> Vec<String> {
        let mut mounts = vec![mount("/usr/bin/onload", "/usr/bin/onload")];
        for library in ["libonload.so", "libefcp.so.1"] {
            for dir in dirs {
                let from = format!("/opt/onload/usr/lib64/{library}");
                mounts.push(mount(&from, &format!("{dir}/{library}")));
            }
        }
        leave_absent(&mut mounts, &|dir| !image.iter().any(|has| Path::new(has) == dir));
        mounts.into_iter().map(|mount| mount.container_path).collect()
    }

    const DEFAULT_LIBRARY_DIRS: [&str; 2] = [MULTIARCH, "/usr/lib64"];

    #[test]
    fn an_image_with_one_of_the_directories_gets_the_libraries_there() {
        for dir in DEFAULT_LIBRARY_DIRS {
            let libraries = [format!("{dir}/libonload.so"), format!("{dir}/libefcp.so.1")];
            assert_eq!(left(DEFAULT_LIBRARY_DIRS, &[dir])[1..], libraries);
        }
    }

    #[test]
    fn an_image_with_both_or_none_of_them_gets_the_libraries_in_both() {
        for image in [&DEFAULT_LIBRARY_DIRS[..], &[]] {
            assert_eq!(left(DEFAULT_LIBRARY_DIRS, image).len(), 5, "{image:?}");
        }
    }

    #[test]
    fn an_image_that_keeps_its_libraries_outside_usr_has_the_directory() {
        assert_eq!(left(DEFAULT_LIBRARY_DIRS, &["/usr/lib64", "/lib/x86_64-linux-gnu"]).len(), 5);
        let expected = ["/usr/bin/onload", "/usr/lib64/libonload.so", "/usr/lib64/libefcp.so.1"];
        assert_eq!(left(DEFAULT_LIBRARY_DIRS, &["/lib64"]), expected);
    }

    #[test]
    fn a_tool_whose_directory_is_missing_stays() {
        assert!(
            left(DEFAULT_LIBRARY_DIRS, &["/usr/lib64"]).contains(&"/usr/bin/onload".to_owned())
        );
    }

    #[test]
    fn a_directory_that_the_operator_names_is_made() {
        let named = [MULTIARCH, "/opt/libraries"];
        assert_eq!(left(named, &[MULTIARCH]).len(), 5);
        assert_eq!(left(named, &[]).len(), 5);
    }

    #[test]
    fn two_files_of_one_name_are_not_taken_for_each_other() {
        let mut mounts = vec![
            mount("/opt/one/libonload.so", "/usr/lib64/libonload.so"),
            mount("/opt/two/libonload.so", &format!("{MULTIARCH}/libonload.so")),
            mount("/opt/one/libonload.so", &format!("{MULTIARCH}/libonload.so.1")),
        ];
        let before = mounts.clone();
        leave_absent(&mut mounts, &|dir| dir != Path::new("/usr/lib64"));
        assert_eq!(mounts, before);
    }
}
