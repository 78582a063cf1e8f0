//! What to do where the system refuses something to a user who is not root.

use std::error::Error;
use std::io;

use rustix::io::Errno;
use rustix::process::geteuid;

/// How a line about this error ends: with what to do, where rights are all that was missing. Root is not
/// told to be root.
#[must_use]
pub fn advice(error: &(dyn Error + 'static)) -> &'static str {
    match !geteuid().is_root() && is_refusal(error) {
        true => "; run as root",
        false => "",
    }
}

/// Whether the error, or a cause of it, is that rights are missing: EACCES or EPERM.
fn is_refusal(error: &(dyn Error + 'static)) -> bool {
    let of_io = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let of_system = |error: &Errno| [Errno::ACCESS, Errno::PERM].contains(error);
    let is_one = |error: &(dyn Error + 'static)| {
        error.downcast_ref().is_some_and(of_io) || error.downcast_ref().is_some_and(of_system)
    };
    std::iter::successors(Some(error), |&error| error.source()).any(is_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("reading /x")]
    struct Reading<E: Error + 'static>(#[source] E);

    #[test]
    fn missing_rights_are_found_below_every_error_that_carries_them() {
        for errno in [Errno::ACCESS, Errno::PERM] {
            assert!(is_refusal(&errno));
            assert!(is_refusal(&io::Error::from(errno)));
            assert!(is_refusal(&Reading(Reading(io::Error::from(errno)))));
            let error = anyhow::Error::new(Reading(errno)).context("writing");
            assert!(is_refusal(error.as_ref()));
        }
    }

    #[test]
    fn nothing_else_is_a_matter_of_rights() {
        for errno in [Errno::NOENT, Errno::ROFS, Errno::NOSPC, Errno::ISDIR] {
            assert!(!is_refusal(&Reading(io::Error::from(errno))), "{errno:?}");
        }
        assert!(!is_refusal(anyhow::anyhow!("Permission denied").as_ref()));
    }
}
