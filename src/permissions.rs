//! Remedies for accesses that are denied to users other than root.

use std::error::Error;
use std::io;

use onload_host::discover::unread::as_root;
use rustix::io::Errno;

/// The end of a line about this error.
pub fn permission_advice(error: &(dyn Error + 'static)) -> &'static str {
    if is_denied(error) { as_root() } else { "" }
}

fn is_denied(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| {
        let kind = match cause.downcast_ref::<Errno>() {
            Some(errno) => Some(io::Error::from(*errno).kind()),
            None => cause.downcast_ref().map(io::Error::kind),
        };
        kind == Some(io::ErrorKind::PermissionDenied)
    })
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
            assert!(is_denied(&errno));
            assert!(is_denied(&io::Error::from(errno)));
            assert!(is_denied(reading(io::Error::from(errno)).as_ref()));
            let error = reading(errno).context("writing");
            assert!(is_denied(error.as_ref()));
        }
    }

    #[test]
    fn nothing_else_is_a_matter_of_rights() {
        for errno in [Errno::NOENT, Errno::ROFS, Errno::NOSPC, Errno::ISDIR] {
            let error = reading(io::Error::from(errno));
            assert!(!is_denied(error.as_ref()), "{errno:?}");
        }
        assert!(!is_denied(anyhow::anyhow!("Permission denied").as_ref()));
    }
}
