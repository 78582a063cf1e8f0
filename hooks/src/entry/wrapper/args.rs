//! Parses the parts of an OCI runtime's command line that the wrapper needs: the verb, the bundle,
//! and the log. Changes nothing; the runtime gets the same words.
//!
//! runc uses Go's `flag` (one dash or two, `-name value` or `-name=value`, options end at the first
//! word without a dash). crun uses argp (two dashes, `-bDIR`, options anywhere). The parser accepts
//! both. If a command line is invalid for the runtime, the runtime reports it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The target of errors: `--log` and `--log-format`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTarget {
    pub path: Option<PathBuf>,
    /// Whether each line is a JSON object, instead of `time="…" level=error msg="…"`.
    pub is_json: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    pub log: LogTarget,
    /// The directory where the runtime keeps its containers (`--root`), as spelled.
    pub root: Option<OsString>,
    /// The container of the verb, if any.
    pub container: Option<OsString>,
    /// The container to edit, for `create` and `run`.
    pub create: Option<CreateArguments>,
    /// The bundle for `restore`; empty means the working directory.
    pub restored: Option<PathBuf>,
    pub is_delete: bool,
    /// The file that describes the process of an `exec`.
    pub process: Option<PathBuf>,
    /// Whether the verb creates a container, as `restore` does too.
    pub makes_container: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateArguments {
    /// Empty means the working directory.
    pub bundle: PathBuf,
    /// The name of the configuration in the bundle, if crun's `--config` gives another one.
    pub config: Option<PathBuf>,
}

/// The verbs of runc, crun and youki. Any other word may be the value of an unknown option.
const VERBS: &str = "checkpoint create delete events exec features h help info init kill list mounts \
    pause ps restore resume run spec start state update version wait";

const GLOBAL_VALUES: &str = "cgroup-manager criu log log-format log-level root rootless";

const GLOBAL_FLAGS: &str = "V debug h help systemd-cgroup usage v version";

/// The verbs for one container whose options may take a value.
const VERBS_WITH_VALUES: &str = "checkpoint create events exec ps restore run update";
/// The other verbs for one container.
const VERBS_WITHOUT_VALUES: &str = "delete kill pause resume start state wait";

/// The options that take a value, of all these verbs: none of them is a flag of another of these verbs. The value of an
/// option of another version may be mistaken for the container's ID; no container has that ID then.
const VALUES: &str = "additional-gids apparmor b blkio-weight bundle c cap cgroup config console-socket cpu-burst \
    cpu-idle cpu-period cpu-quota cpu-rt-period cpu-rt-runtime cpu-share cpuset-cpus cpuset-mems cwd e empty-ns \
    env f format g image-path interval l3-cache-schema lsm-mount-context lsm-profile manage-cgroups-mode \
    mem-bw-schema memory memory-reservation memory-swap p page-server parent-path pid-file pidfd-socket \
    pids-limit preserve-fds process process-label r resources status-fd u user work-path";

struct OptionWord<'a> {
    name: &'a [u8],
    value: Option<&'a OsStr>,
}

fn parse_option(word: &OsStr) -> Option<OptionWord<'_>> {
    let bytes = word.as_bytes();
    let name = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-"))?;
    if name.is_empty() {
        return None;
    }
    let mut parts = name.splitn(2, |byte| *byte == b'=');
    Some(OptionWord { name: parts.next()?, value: parts.next().map(OsStr::from_bytes) })
}

fn is_among(name: &[u8], words: &str) -> bool {
    words.split(' ').any(|word| word.as_bytes() == name)
}

/// Parses a command line. `args` does not include the program's name.
#[must_use]
pub fn parse(args: &[OsString]) -> Invocation {
    let mut invocation = Invocation::default();
    let mut words = args.iter().map(OsString::as_os_str).peekable();
    let verb = loop {
        let Some(word) = words.next() else {
            return invocation;
        };
        let Some(opt) = parse_option(word) else {
            if word == "--" {
                continue;
            }
            break word;
        };
        let mut value = opt.value;
        if value.is_none() {
            let takes_value = is_among(opt.name, GLOBAL_VALUES);
            let is_unknown = !takes_value && !is_among(opt.name, GLOBAL_FLAGS);
            // The word after an unknown option is its value, unless it is a verb or an option.
            if takes_value
                || is_unknown
                    && words.peek().is_some_and(|next| {
                        !is_among(next.as_bytes(), VERBS) && parse_option(next).is_none()
                    })
            {
                value = words.next();
            }
        }
        apply_global_option(&mut invocation, opt.name, value);
    };
    let creates = verb == "create" || verb == "run";
    invocation.create = creates.then(CreateArguments::default);
    invocation.restored = (verb == "restore").then(PathBuf::default);
    invocation.is_delete = verb == "delete";
    invocation.makes_container = creates || invocation.restored.is_some();
    let values = match verb.as_bytes() {
        verb if is_among(verb, VERBS_WITH_VALUES) => VALUES,
        verb if is_among(verb, VERBS_WITHOUT_VALUES) => "",
        _ => return invocation,
    };
    while let Some(word) = next(&mut words, values) {
        match word {
            ArgumentWord::Other(word) if word == "--" => {
                if let Some(id) = words.next() {
                    invocation.container = Some(id.to_owned());
                }
                break;
            }
            ArgumentWord::Other(word) => {
                invocation.container = Some(word.to_owned());
                // Verbs that create a container have only the ID as a word. A word before it is the value of an
                // unknown option.
                if !invocation.makes_container {
                    break;
                }
            }
            ArgumentWord::Option(name, value) => match (name, &mut invocation.create) {
                (b"b" | b"bundle", Some(create)) => {
                    create.bundle = value.map(PathBuf::from).unwrap_or_default();
                }
                (b"b" | b"bundle", None) if invocation.restored.is_some() => {
                    invocation.restored = Some(value.map(PathBuf::from).unwrap_or_default());
                }
                (b"f" | b"config", Some(create)) => create.config = value.map(PathBuf::from),
                (b"p" | b"process", None) if verb == "exec" => {
                    invocation.process = value.map(PathBuf::from);
                }
                _ => {}
            },
        }
    }
    invocation
}

enum ArgumentWord<'a> {
    Option(&'a [u8], Option<&'a OsStr>),
    Other(&'a OsStr),
}

/// Parses the next word of a verb. An option includes its value: the next word, if `values` names
/// the option. crun also accepts the value of `-b`, `-f` and `-p` in the same word, as `-pFILE`;
/// runc also has `-pid-file`.
fn next<'a>(words: &mut impl Iterator<Item = &'a OsStr>, values: &str) -> Option<ArgumentWord<'a>> {
    let word = words.next()?;
    let Some(opt) = parse_option(word) else {
        return Some(ArgumentWord::Other(word));
    };
    let takes_value = is_among(opt.name, values);
    if let [b'-', rest @ ..] = word.as_bytes()
        && let ([letter], [first, ..]) = rest.split_at_checked(1)?
        && b"bfp".contains(letter)
        && *first != b'='
        && !takes_value
    {
        let value = OsStr::from_bytes(&rest[1..]);
        return Some(ArgumentWord::Option(&rest[..1], Some(value)));
    }
    let value = match opt.value {
        None if takes_value => words.next(),
        value => value,
    };
    Some(ArgumentWord::Option(opt.name, value))
}

fn apply_global_option(invocation: &mut Invocation, name: &[u8], value: Option<&OsStr>) {
    let log = &mut invocation.log;
    match (name, value) {
        (b"root", Some(root)) => invocation.root = Some(root.to_owned()),
        (b"log", Some(path)) if !path.is_empty() => log.path = Some(PathBuf::from(path)),
        (b"log-format", Some(format)) => log.is_json = format == "json",
        _ => {}
    }
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
        assert!(found.log.is_json);
        let create = found.create.unwrap();
        assert_eq!((create.bundle, found.container), (PathBuf::from("/b"), Some("c1".into())));
        let conmon = "--log-format=json --log=/b/oci-log create --bundle /b --pid-file /b/pid c1";
        assert!(parsed(conmon).log.is_json);
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
            assert_eq!(parsed(line).container, Some("c1".into()), "{line}");
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
        for line in ["delete c1", "--root /r delete --force c1", "delete -f c1", "delete c1 -f"] {
            let found = parsed(line);
            assert!(found.is_delete, "{line}");
            assert_eq!(found.container, Some("c1".into()), "{line}");
        }
        assert_eq!(parsed("delete").container, None);
        for line in ["kill c1", "create c1"] {
            assert!(!parsed(line).is_delete, "{line}");
        }
    }

    #[test]
    fn the_bundle_of_a_container_to_restore_is_known() {
        for (line, bundle) in [
            ("restore --bundle /b --image-path /i -d c1", "/b"),
            ("restore --image-path /i -b=/b c1", "/b"),
            ("restore -b/b c1", "/b"),
            ("restore c1 -b /b", "/b"),
            ("restore c1", ""),
        ] {
            let found = parsed(line);
            assert_eq!(found.restored, Some(bundle.into()), "{line}");
            assert_eq!(found.container, Some("c1".into()), "{line}");
        }
        for line in ["checkpoint -b /b c1", "create -b /b c1", "state c1"] {
            assert_eq!(parsed(line).restored, None, "{line}");
        }
    }

    #[test]
    fn the_container_of_every_verb_is_known() {
        for line in [
            "state c1",
            "kill c1 KILL",
            "kill --all c1 9",
            "start c1",
            "pause c1",
            "resume c1",
            "ps --format json c1 -ef",
            "events --interval 5s --stats c1",
            "update --resources - c1",
            "update -r=/r c1",
            "update --cpu-quota 5 c1",
            "exec --process /p --detach --pid-file /pid c1",
            "exec -t -u 1000:1000 -e A=b c1 sh delete c2",
            "exec --tty --cap=CAP_X -- c1 ls",
            "checkpoint --image-path /i --leave-running c1",
            "restore --bundle /b --image-path /i -d c1",
            "create -b /b c1",
            "run -d -b /b c1",
            "wait c1",
        ] {
            let found = parsed(&format!("--root /r {line}"));
            assert_eq!(found.container, Some("c1".into()), "{line}");
            assert_eq!(found.root, Some("/r".into()), "{line}");
        }
        for line in
            ["", "list", "list -f json", "features", "--version", "spec", "info c1", "state"]
        {
            assert_eq!(parsed(line).container, None, "{line}");
        }
    }

    #[test]
    fn the_process_of_an_exec_is_known() {
        for line in [
            "exec --process /p c1",
            "exec -p /p -d c1",
            "exec --process=/p c1",
            "exec -process /p c1",
            "exec -p=/p c1",
            "exec -p/p c1",
            "exec --pid-file /pid --process /p c1",
        ] {
            assert_eq!(parsed(line).process, Some("/p".into()), "{line}");
            assert_eq!(parsed(line).container, Some("c1".into()), "{line}");
        }
        // crun's spelling takes all that follows.
        assert_eq!(parsed("exec -p/a=b c1").process, Some("/a=b".into()));
        for line in [
            "exec c1 -p /p",
            "exec -pid-file /p c1",
            "exec --process-label x c1 sh",
            "exec --preserve-fds 1 c1",
            "ps -p c1",
            "state c1",
        ] {
            assert_eq!(parsed(line).process, None, "{line}");
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
        assert_eq!(parsed("run -b /b create").container, Some("create".into()));
        let dashed = parsed("create -b /b -- -b");
        assert_eq!(
            (dashed.create.unwrap().bundle, dashed.container),
            (PathBuf::from("/b"), Some("-b".into()))
        );
    }

    #[test]
    fn an_unknown_global_option_does_not_hide_the_verb() {
        assert_eq!(bundle("--new-flag create -b /b c").as_deref(), Some("/b"));
        assert_eq!(bundle("-V create -b /b c").as_deref(), Some("/b"));
        assert_eq!(bundle("--new-option value create -b /b c").as_deref(), Some("/b"));
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
        let found = parsed("create --new-option value -b /b c1");
        assert_eq!(found.container, Some("c1".into()));
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
        let words = [OsString::from("create"), "-b".into(), odd.clone(), "c".into()];
        assert_eq!(parse(&words).create.unwrap().bundle, PathBuf::from(odd));
    }
}
