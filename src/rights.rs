//! What to do where the system refuses something to a user who is not root.

use std::error::Error;
use std::io;

use rustix::io::Errno;
use rustix::process::geteuid;

/// The end of a line about this error. Root is not told to be root.
pub fn advice(error: &(dyn Error + 'static)) -> &'static str {
    if !geteuid().is_root() && is_refusal(error) {
        "; run as root"
    } else {
        ""
    }
}

/// EACCES or EPERM, in the error or a cause of it.
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

    fn reading(error: impl Error + Send + Sync + 'static) -> anyhow::Error {
        anyhow::Error::new(error).context("reading /x")
    }

    #[test]
    fn missing_rights_are_found_below_every_error_that_carries_them() {
        for errno in [Errno::ACCESS, Errno::PERM] {
            assert!(is_refusal(&errno));
            assert!(is_refusal(&io::Error::from(errno)));
            assert!(is_refusal(reading(io::Error::from(errno)).as_ref()));
            let error = reading(errno).context("writing");
            assert!(is_refusal(error.as_ref()));
        }
    }

    #[test]
    fn nothing_else_is_a_matter_of_rights() {
        for errno in [Errno::NOENT, Errno::ROFS, Errno::NOSPC, Errno::ISDIR] {
            let error = reading(io::Error::from(errno));
            assert!(!is_refusal(error.as_ref()), "{errno:?}");
        }
        assert!(!is_refusal(anyhow::anyhow!("Permission denied").as_ref()));
    }
}
