//! The command line of an OCI runtime, as far as the wrapper must understand it: which verb, which
//! bundle, where errors go. Nothing is changed; the runtime gets the same words.
//!
//! runc parses with Go's `flag` (one dash or two, `-name value` or `-name=value`, options end at the
//! first word without a dash), crun with argp (two dashes, `-bDIR`, options anywhere). Both are
//! understood; where they contradict each other, the runtime that follows complains.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// How the engine wants errors written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `time="…" level=error msg="…"`.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Where the engine wants errors written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTarget {
    /// The file of `--log`.
    pub path: Option<PathBuf>,
    /// `--log-format`.
    pub format: LogFormat,
}

/// What the wrapper needs to know of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    /// Where errors go.
    pub log: LogTarget,
    /// Where the runtime keeps its containers (`--root`), as it is spelled.
    pub root: Option<OsString>,
    /// The container to edit, for `create` and `run`.
    pub create: Option<Create>,
    /// The name of the container that is deleted.
    pub delete: Option<OsString>,
    /// Whether a container comes to life: `restore` makes one as well.
    pub makes_container: bool,
}

/// A container that is about to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Create {
    /// The bundle's directory; empty: the working directory.
    pub bundle: PathBuf,
    /// The configuration's name in the bundle, where crun's `--config` gives another.
    pub config: Option<PathBuf>,
    /// The container's name, where it can be told.
    pub id: Option<OsString>,
}

/// The verbs of runc, crun and youki: a word that is none may be the value of an option that this
/// version does not know.
const VERBS: [&str; 24] = [
    "checkpoint",
    "create",
    "delete",
    "events",
    "exec",
    "features",
    "h",
    "help",
    "info",
    "init",
    "kill",
    "list",
    "mounts",
    "pause",
    "ps",
    "restore",
    "resume",
    "run",
    "spec",
    "start",
    "state",
    "update",
    "version",
    "wait",
];

/// Options before the verb that have a value behind them.
const GLOBAL_VALUES: [&str; 7] = [
    "cgroup-manager",
    "criu",
    "log",
    "log-format",
    "log-level",
    "root",
    "rootless",
];

/// Options before the verb that have none.
const GLOBAL_FLAGS: [&str; 7] = [
    "debug",
    "h",
    "help",
    "systemd-cgroup",
    "usage",
    "v",
    "version",
];

/// Options of `create` and `run` that have a value behind them.
const CREATE_VALUES: [&str; 8] = [
    "b",
    "bundle",
    "config",
    "console-socket",
    "f",
    "pid-file",
    "pidfd-socket",
    "preserve-fds",
];

/// An option as it stands on the command line.
struct Opt<'a> {
    name: &'a [u8],
    value: Option<&'a OsStr>,
}

fn option(word: &OsStr) -> Option<Opt<'_>> {
    let bytes = word.as_bytes();
    let name = bytes
        .strip_prefix(b"--")
        .or_else(|| bytes.strip_prefix(b"-"))?;
    if name.is_empty() {
        return None;
    }
    let at = name.iter().position(|byte| *byte == b'=');
    let (name, value) = match at {
        Some(at) => (&name[..at], Some(OsStr::from_bytes(&name[at + 1..]))),
        None => (name, None),
    };
    Some(Opt { name, value })
}

fn is_among(name: &[u8], known: &[&str]) -> bool {
    known.iter().any(|known| known.as_bytes() == name)
}

fn is_verb(word: &OsStr) -> bool {
    is_among(word.as_bytes(), &VERBS)
}

/// Reads a command line, without the program's name.
#[must_use]
pub fn parse(args: &[OsString]) -> Invocation {
    let mut found = Invocation::default();
    let mut words = args.iter().map(OsString::as_os_str).peekable();
    let verb = loop {
        let Some(word) = words.next() else {
            return found;
        };
        let Some(opt) = option(word) else {
            if word == "--" {
                continue;
            }
            break word;
        };
        let mut value = opt.value;
        if value.is_none() {
            let takes = is_among(opt.name, &GLOBAL_VALUES);
            let unknown = !takes && !is_among(opt.name, &GLOBAL_FLAGS);
            // What an unknown option has behind it is its value unless it is a verb or an option.
            let may = |next: &OsStr| !is_verb(next) && option(next).is_none();
            if takes || unknown && words.peek().is_some_and(|next| may(next)) {
                value = words.next();
            }
        }
        if opt.name == b"root" {
            found.root = value.map(OsStr::to_owned);
        }
        global(&mut found.log, opt.name, value);
    };
    if verb == "create" || verb == "run" {
        found.create = Some(create(words));
    } else if verb == "delete" {
        let mut names = words.filter(|word| option(word).is_none());
        found.delete = names.next_back().map(OsStr::to_owned);
    }
    found.makes_container = found.create.is_some() || verb == "restore";
    found
}

fn global(log: &mut LogTarget, name: &[u8], value: Option<&OsStr>) {
    match (name, value) {
        (b"log", Some(path)) if !path.is_empty() => log.path = Some(PathBuf::from(path)),
        (b"log-format", Some(format)) => {
            log.format = if format == "json" {
                LogFormat::Json
            } else {
                LogFormat::Text
            };
        }
        _ => {}
    }
}

fn create<'a>(mut words: impl Iterator<Item = &'a OsStr>) -> Create {
    let mut found = Create::default();
    while let Some(word) = words.next() {
        if word == "--" {
            found.id = words.next().map(OsString::from).or(found.id);
            break;
        }
        let Some(opt) = option(word) else {
            // The name is the only word; one before it is the value of an unknown option.
            found.id = Some(word.to_owned());
            continue;
        };
        let joined = |letter: u8| match word.as_bytes() {
            [b'-', first, rest @ ..] if *first == letter && !rest.is_empty() && rest[0] != b'=' => {
                Some(OsStr::from_bytes(rest))
            }
            _ => None,
        };
        let value = match opt.value {
            None if is_among(opt.name, &CREATE_VALUES) => words.next(),
            value => value,
        };
        match opt.name {
            b"b" | b"bundle" => found.bundle = value.map(PathBuf::from).unwrap_or_default(),
            b"f" | b"config" => found.config = value.map(PathBuf::from),
            _ if !word.as_bytes().starts_with(b"--") => {
                if let Some(path) = joined(b'b').filter(|_| opt.name != b"bundle") {
                    found.bundle = PathBuf::from(path);
                } else if let Some(path) = joined(b'f') {
                    found.config = Some(PathBuf::from(path));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Invocation {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        parse(&words)
    }

    fn bundle(line: &str) -> Option<String> {
        let create = parsed(line).create?;
        Some(create.bundle.to_string_lossy().into_owned())
    }

    #[test]
    fn the_engines_command_lines_are_understood() {
        let shim = "--root /run/containerd/runc/k8s.io --log /b/log.json --log-format json --systemd-cgroup create --bundle /b --pid-file /b/init.pid c1";
        let found = parsed(shim);
        assert_eq!(found.log.path, Some(PathBuf::from("/b/log.json")));
        assert_eq!(found.log.format, LogFormat::Json);
        let create = found.create.unwrap();
        assert_eq!(
            (create.bundle, create.id),
            (PathBuf::from("/b"), Some("c1".into()))
        );
        let conmon = "--log-format=json --log=/b/oci-log create --bundle /b --pid-file /b/pid c1";
        assert_eq!(parsed(conmon).log.format, LogFormat::Json);
        assert_eq!(bundle(conmon).as_deref(), Some("/b"));
    }

    #[test]
    fn every_spelling_of_the_bundle_is_understood() {
        for line in [
            "create -b /b c1",
            "create -b=/b c1",
            "create -bundle /b c1",
            "create -bundle=/b c1",
            "create --bundle=/b c1",
            "create -b/b c1",
            "create c1 --bundle /b",
            "run -d -b /b c1",
            "run --console-socket /s -b /b --preserve-fds 3 c1",
        ] {
            assert_eq!(bundle(line).as_deref(), Some("/b"), "{line}");
            assert_eq!(parsed(line).create.unwrap().id, Some("c1".into()), "{line}");
        }
        assert_eq!(bundle("create c1").as_deref(), Some(""));
    }

    #[test]
    fn other_verbs_are_not_ours() {
        for line in [
            "",
            "--version",
            "delete create",
            "state run",
            "--root create start c",
            "exec c create",
        ] {
            assert_eq!(parsed(line).create, None, "{line}");
            assert!(!parsed(line).makes_container, "{line}");
        }
    }

    #[test]
    fn the_container_that_is_deleted_is_known() {
        for line in [
            "delete c1",
            "--root /r delete --force c1",
            "delete -f c1",
            "delete c1 -f",
        ] {
            assert_eq!(parsed(line).delete, Some("c1".into()), "{line}");
        }
        for line in ["delete", "kill c1", "create c1"] {
            assert_eq!(parsed(line).delete, None, "{line}");
        }
    }

    #[test]
    fn the_runtime_s_own_directory_is_known() {
        for line in ["--root /r create c", "--root=/r run c", "-root /r delete c"] {
            assert_eq!(parsed(line).root, Some("/r".into()), "{line}");
        }
        for line in ["create c --root /r", "--rootless true create c", "create"] {
            assert_eq!(parsed(line).root, None, "{line}");
        }
    }

    #[test]
    fn three_verbs_make_a_container() {
        for line in ["create -b /b c", "--debug run c", "--root /r restore c"] {
            assert!(parsed(line).makes_container, "{line}");
        }
    }

    #[test]
    fn a_container_may_have_the_name_of_a_verb_or_of_an_option() {
        assert_eq!(
            parsed("run -b /b create").create.unwrap().id,
            Some("create".into())
        );
        let dashed = parsed("create -b /b -- -b").create.unwrap();
        assert_eq!(
            (dashed.bundle, dashed.id),
            (PathBuf::from("/b"), Some("-b".into()))
        );
    }

    #[test]
    fn an_unknown_global_option_does_not_hide_the_verb() {
        assert_eq!(bundle("--new-flag create -b /b c").as_deref(), Some("/b"));
        assert_eq!(
            bundle("--new-option value create -b /b c").as_deref(),
            Some("/b")
        );
        assert_eq!(bundle("--new=value create -b /b c").as_deref(), Some("/b"));
        assert_eq!(parsed("--new-option value delete -b /b c").create, None);
    }

    #[test]
    fn options_may_end_before_the_verb() {
        assert_eq!(bundle("-- create -b /b c").as_deref(), Some("/b"));
        assert_eq!(bundle("--root /r -- run -b /b c").as_deref(), Some("/b"));
        assert_eq!(parsed("-- delete create").create, None);
    }

    #[test]
    fn the_value_of_an_unknown_option_is_not_the_container_s_name() {
        let create = parsed("create --new-option value -b /b c1").create.unwrap();
        assert_eq!(create.id, Some("c1".into()));
    }

    #[test]
    fn another_name_of_the_configuration_is_seen() {
        for line in [
            "create -f x.json c",
            "create --config x.json c",
            "create --config=x.json c",
            "create -fx.json c",
        ] {
            assert_eq!(
                parsed(line).create.unwrap().config,
                Some(PathBuf::from("x.json")),
                "{line}"
            );
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        let odd = OsString::from(OsStr::from_bytes(b"/b\xff"));
        let words = [
            OsString::from("create"),
            "-b".into(),
            odd.clone(),
            "c".into(),
        ];
        assert_eq!(parse(&words).create.unwrap().bundle, PathBuf::from(odd));
    }
}
