//! Executes another program in this process: same descriptors, same environment, same signals.
//!
//! std's `Command` would start it with an empty signal mask and a default SIGPIPE, and like
//! execvp(3) it hands a file that is not a program to a shell. execve(2) does neither.
#![expect(unsafe_code, reason = "execve takes pointers")]

use std::ffi::{CStr, CString, OsString, c_char, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

unsafe extern "C" {
    /// The environment as the kernel passed it (environ(7)), including entries without `=`.
    static environ: *const *const c_char;

    fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char)
    -> c_int;
}

/// Executes `program` with the words of a command line, starting with the program's name. Returns
/// only if that fails.
pub(crate) fn exec_program(program: &Path, argv: &[OsString]) -> io::Error {
    let c_string = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
    let program = match c_string(program.as_os_str().as_bytes()) {
        Ok(program) => program,
        Err(error) => return error,
    };
    let words: Result<Vec<CString>, _> =
        argv.iter().map(|word| c_string(word.as_bytes())).collect();
    match words {
        Ok(words) => call_execve(&program, &words),
        Err(error) => error,
    }
}

fn call_execve(program: &CStr, words: &[CString]) -> io::Error {
    let pointers: Vec<*const c_char> =
        words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
    // SAFETY: `pointers` ends with a null pointer, and its other elements point into `words`, which
    // are NUL-terminated and outlive the call. `environ` has been such a list since the process
    // started: this program has one thread and never changes its environment.
    unsafe {
        execve(program.as_ptr(), pointers.as_ptr(), environ);
    }
    io::Error::last_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_executed_is_an_error() {
        let missing = exec_program(Path::new("/nonexistent/runc"), &["runc".into()]);
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let nul = OsString::from("a\0b");
        assert_eq!(
            exec_program(Path::new("/bin/true"), &[nul]).kind(),
            io::ErrorKind::InvalidInput
        );
    }

    #[test]
    fn a_text_without_an_interpreter_is_not_handed_to_a_shell() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("script");
        std::fs::write(&path, "echo never\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let error = exec_program(&path, &["script".into()]);
        assert_eq!(error.raw_os_error(), Some(8), "ENOEXEC");
    }
}
