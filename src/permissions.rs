//! Remedies for accesses that are denied to users other than root.

use std::error::Error;
use std::io;

use onload_host::discover::unread::as_root;
use rustix::io::Errno;

/// The end of a line about this error.
pub fn permission_advice(error: &(dyn Error + 'static)) -> &'static str {
    if is_error_kind(error, &[io::ErrorKind::PermissionDenied]) { as_root() } else { "" }
}

/// Whether the system said something of these kinds, in the error or a cause of it.
pub(crate) fn is_error_kind(error: &(dyn Error + 'static), kinds: &[io::ErrorKind]) -> bool {
    let kind = |error: &(dyn Error + 'static)| match error.downcast_ref::<Errno>() {
        Some(errno) => Some(io::Error::from(*errno).kind()),
        None => error.downcast_ref().map(io::Error::kind),
    };
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|error| kind(error).is_some_and(|kind| kinds.contains(&kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refusal(error: &(dyn Error + 'static)) -> bool {
        is_error_kind(error, &[io::ErrorKind::PermissionDenied])
    }

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
