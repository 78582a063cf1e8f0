//! Untrusted configurations of the maximum size, with as many items of one kind as fit. Each
//! requests a nic, so that it is parsed. `hooks/examples/shape.rs` writes them for measurements and
//! for the seeds of the fuzz targets.

/// A shape by name, and what replaces `@` in its frame.
pub struct Shape {
    pub name: &'static str,
    frame: &'static str,
    separator: &'static str,
    /// The repeated part; `#` in it is a number that never repeats, and so is `%`, in decimal.
    unit: &'static str,
    end: &'static str,
    /// The message of every entry point that refuses it; `None` if it is accepted.
    pub refusal: Option<&'static str>,
}

const fn shape(name: &'static str, frame: &'static str, unit: &'static str) -> Shape {
    Shape { name, frame, separator: ",", unit, end: "", refusal: None }
}

const fn repeated(
    name: &'static str,
    frame: &'static str,
    unit: &'static str,
    end: &'static str,
) -> Shape {
    Shape { name, frame, separator: "", unit, end, refusal: None }
}

impl Shape {
    const fn refused(mut self, refusal: &'static str) -> Self {
        self.refusal = Some(refusal);
        self
    }
}

/// All of them. What is before the first `@` and after it is written once.
pub const SHAPES: &[Shape] = &[
    shape("members", r#"{$root,$ask,$process,@}"#, r##""=#":0"##),
    shape("members-same", r#"{$root,$ask,$process,@}"#, r#""":0"#).refused("duplicate key \"\""),
    shape(
        "members-escaped",
        r#"{$root,$ask,$process,@}"#,
        r##""\u0061#":0"##,
    ),
    shape(
        "process",
        r#"{$root,$ask,"process":{$args,@}}"#,
        r##""=#":0"##,
    ),
    shape(
        "linux",
        r#"{$root,$ask,$process,"linux":{@}}"#,
        r##""=#":0"##,
    ),
    shape(
        "annotations",
        r#"{$root,$process,"annotations":{"onload.dev/nic":"all",@}}"#,
        r##""=#":"""##,
    ),
    shape(
        "annotations-of-ours",
        r#"{$root,$process,"annotations":{@}}"#,
        r##""onload.dev/#":"""##,
    ).refused("more than 64 annotations"),
    shape("mounts", r#"{$root,$ask,$process,"mounts":[@]}"#, "{}").refused("mounts: more than 100000 values"),
    shape(
        "mounts-at-most",
        r#"{$root,$ask,$process,"mounts":[@]}"#,
        r##"{"destination":"/m/#","type":"bind","source":"/ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss","options":["rbind"]}"##,
    ),
    shape(
        "mounts-one-place",
        r#"{$root,$ask,$process,"mounts":[@]}"#,
        r#"{"destination":"/m","type":"bind","source":"/ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss","options":["rbind"]}"#,
    ),
    shape(
        "mounts-over-each-other",
        r#"{$root,$ask,$process,"mounts":[@]}"#,
        r#"{"destination":"/dev","type":"bind","source":"/ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss","options":["rbind"]}"#,
    ).refused("is below the mount at"),
    shape(
        "mounts-in-each-other",
        r#"{$root,$ask,$process,"mounts":[@]}"#,
        r#"{"destination":"/m/a/a/a/a/a/a/a/a/a/a/a/a/a/a","type":"tmpfs","source":"/ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss","options":["tmpcopyup"]}"#,
    ),
    shape(
        "mounts-deep",
        r#"{$root,$ask,$process,"mounts":[@]}"#,
        r##"{"destination":"/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/#","source":"/ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss","type":"tmpfs"}"##,
    ),
    shape(
        "mount-options",
        r#"{$root,$ask,$process,"mounts":[{"destination":"/m","options":[@]}]}"#,
        r#""""#,
    ).refused("options: more than 100000 values"),
    shape(
        "devices",
        r#"{$root,$ask,$process,"linux":{"devices":[@]}}"#,
        r##"{"path":"#","type":""}"##,
    ),
    shape(
        "devices-same",
        r#"{$root,$ask,$process,"linux":{"devices":[@]}}"#,
        r##"{"path":"/dev/onload","type":"c","major":1,"minor":%}"##,
    ),
    shape(
        "devices-empty",
        r#"{$root,$ask,$process,"linux":{"devices":[@]}}"#,
        "{}",
    ).refused("missing field `path`"),
    shape(
        "rules",
        r#"{$root,$ask,$process,"linux":{"resources":{"devices":[@]}}}"#,
        "{}",
    ),
    shape(
        "hugepage-limits",
        r#"{$root,$ask,$process,"linux":{"resources":{"hugepageLimits":[@]}}}"#,
        r##"{"pageSize":"","limit":0}"##,
    ),
    shape(
        "namespaces",
        r#"{$root,$ask,$process,"linux":{"namespaces":[@]}}"#,
        r#"{"type":""}"#,
    ),
    shape(
        "mappings",
        r#"{$root,$ask,$process,"linux":{"namespaces":[{"type":"user"}],"uidMappings":[@]}}"#,
        r#"{"containerID":0,"hostID":0,"size":0}"#,
    ).refused("uidMappings: more than 100000 values"),
    shape("numbers", r#"{$root,$ask,$process,"x":[@]}"#, "0"),
    shape(
        "env",
        r#"{$root,$ask,"process":{$args,"env":[@]}}"#,
        r#""""#,
    ),
    shape(
        "env-same",
        r#"{$root,$ask,"process":{$args,"env":[@]}}"#,
        r#""LD_PRELOAD=""#,
    ),
    shape(
        "env-escaped",
        r#"{$root,$ask,"process":{$args,"env":[@]}}"#,
        r#""\u0061""#,
    ),
    shape(
        "args",
        r#"{$root,$ask,"process":{"cwd":"/","args":[@]}}"#,
        r#""""#,
    ),
    shape(
        "rlimits",
        r#"{$root,$ask,"process":{$args,"rlimits":[@]}}"#,
        r#"{"type":"","hard":0,"soft":0}"#,
    ),
    shape(
        "groups",
        r#"{$root,$ask,"process":{$args,"user":{"uid":0,"gid":0,"additionalGids":[@]}}}"#,
        "0",
    ),
    shape(
        "capabilities",
        r#"{$root,$ask,"process":{$args,"capabilities":{"ambient":[@],"permitted":[]}}}"#,
        r#""""#,
    ),
    shape(
        "hooks",
        r#"{$root,$ask,$process,"hooks":{"poststop":[@]}}"#,
        r#"{"path":""}"#,
    ),
    shape(
        "hook-args",
        r#"{$root,$ask,$process,"hooks":{"poststop":[{"path":"","args":[@]}]}}"#,
        r#""""#,
    ),
    repeated("nested", r#"{$root,$ask,$process,"x":@}"#, "[", "]"),
    repeated(
        "nested-objects",
        r#"{$root,$ask,$process,"x":@}"#,
        r#"{"":"#,
        "}",
    ),
    repeated("string", r#"{$root,$ask,$process,"x":"@"}"#, "x", ""),
    repeated(
        "string-escaped",
        r#"{$root,$ask,$process,"x":"@"}"#,
        r"\u0001",
        "",
    ),
    repeated("key", r#"{$root,$ask,$process,"@":0}"#, "x", ""),
    repeated(
        "key-twice",
        r#"{$root,$ask,$process,"@":0,"@":0}"#,
        "\u{7f}",
        "",
    ).refused("duplicate key"),
    repeated(
        "env-long",
        r#"{$root,$ask,"process":{$args,"env":["@"]}}"#,
        "x",
        "",
    ),
    repeated(
        "preload-list",
        r#"{$root,$ask,"process":{$args,"env":["LD_PRELOAD=@"]}}"#,
        "a:",
        "",
    ).refused("LD_PRELOAD: a string of more than 131072 bytes"),
    repeated(
        "path-list",
        r#"{$root,$ask,"process":{$args,"env":["PATH=@"]}}"#,
        "a:",
        "",
    ).refused("PATH: a string of more than 131072 bytes"),
    repeated(
        "arg-long",
        r#"{$root,$ask,"process":{"cwd":"/","args":["/@"]}}"#,
        "\u{7f}",
        "",
    ),
    repeated(
        "cwd-long",
        r#"{$root,$ask,"process":{"args":["sh"],"cwd":"/@"}}"#,
        "\u{7f}",
        "",
    ),
    repeated(
        "uid-no-number",
        r#"{$root,$ask,"process":{$args,"user":{"uid":"@"}}}"#,
        "\u{7f}",
        "",
    ).refused("uid: a string of more than 131072 bytes"),
    repeated(
        "root-long",
        r#"{$process,$ask,"root":{"path":"@"}}"#,
        "\u{7f}",
        "",
    ).refused("path: a string of more than 131072 bytes"),
    repeated(
        "destination-long",
        r#"{$root,$ask,$process,"mounts":[{"destination":"@"}]}"#,
        "/a",
        "",
    ).refused("destination: a string of more than 131072 bytes"),
    repeated(
        "destination-odd",
        r#"{$root,$ask,$process,"mounts":[{"destination":"/@","type":"bind"}]}"#,
        "\u{7f}",
        "",
    ).refused("destination: a string of more than 131072 bytes"),
    repeated(
        "source-long",
        r#"{$root,$ask,$process,"mounts":[{"destination":"/m","source":"@"}]}"#,
        "\u{7f}",
        "",
    ).refused("source: a string of more than 131072 bytes"),
    repeated(
        "value-long",
        r#"{$root,$process,"annotations":{"onload.dev/nic":"@"}}"#,
        "\u{7f}",
        "",
    ).refused("has more than 4096 bytes"),
    repeated("white", r#"{$root,$ask,$process,"mounts":[@]}"#, " ", ""),
];

impl Shape {
    /// A configuration with this shape and as many units as fit into `size` bytes.
    #[must_use]
    pub fn json(&self, size: usize) -> Vec<u8> {
        let frame = self
            .frame
            .replace("$root", r#""root":{"path":"rootfs"}"#)
            .replace("$ask", r#""annotations":{"onload.dev/nic":"all"}"#)
            .replace("$process", r#""process":{$args}"#)
            .replace("$args", r#""args":["sh"],"cwd":"/","noNewPrivileges":true"#);
        let holes = frame.matches('@').count();
        let room = size.saturating_sub(frame.len()) / holes.max(1);
        frame.replace('@', &self.filling(room)).into_bytes()
    }

    fn filling(&self, room: usize) -> String {
        let mut text = String::with_capacity(room);
        let mut count = 0_usize;
        loop {
            let unit = self.unit.replace('#', &radix(count)).replace('%', &count.to_string());
            let more = unit.len() + self.separator.len() + (count + 1) * self.end.len();
            if text.len() + more > room {
                break;
            }
            if count > 0 {
                text.push_str(self.separator);
            }
            text.push_str(&unit);
            count += 1;
        }
        for _ in 0..count {
            text.push_str(self.end);
        }
        // The innermost of nested objects must contain something.
        if self.unit.ends_with(':') {
            let inner = text.len() - count * self.end.len();
            text.insert(inner, '0');
        }
        text
    }
}

/// A number with few characters.
fn radix(mut number: usize) -> String {
    const LETTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut text = String::new();
    loop {
        text.push(char::from(LETTERS[number % LETTERS.len()]));
        number /= LETTERS.len();
        if number == 0 {
            return text;
        }
    }
}
