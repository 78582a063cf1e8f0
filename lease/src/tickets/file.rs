//! The content of a ticket's file.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use onload_core::container_id::ContainerId;
use onload_core::device_id::DeviceId;
use onload_core::request::{Origin, Request};
use onload_core::timestamp::format_rfc3339;
use onload_core::versioned;
use onload_sys::error::{Context as _, Result};
use onload_sys::processes::ProcessId;
use onload_sys::text::Quoted;

/// The newest supported version of the file.
const VERSION: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ticket {
    /// The ID of the boot in which the ticket was created.
    pub boot: String,
    /// The creation time in seconds since 1970, for people.
    pub since: u64,
    /// The creation time in milliseconds since boot (`CLOCK_BOOTTIME`), for decisions, since the
    /// host's clock may be set.
    pub made_ms: u64,
    /// The request, as [`Request::parse_text`] reads it: `nic=ens1;vfio=0000:81:10.0`.
    pub request: String,
    /// The devices of the request that only one task may hold.
    #[serde(default)]
    pub exclusive: Vec<DeviceId>,
    /// The engine that created the ticket, such as `nomad`.
    pub engine: String,
    /// The engine's description of the ticket, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The last container that was started with the ticket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<TicketUser>,
}

/// A container that was started with a ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TicketUser {
    pub container: ContainerId,
    pub bundle: PathBuf,
    /// The process that became the container's runtime.
    pub maker: ProcessId,
    /// Directories of which the runtime keeps one for as long as the container exists.
    pub state: Vec<PathBuf>,
    /// The host directory that the engine gave to this task only, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<PathBuf>,
    /// When the container was first found to be gone, in milliseconds since boot
    /// (`CLOCK_BOOTTIME`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
}

impl TicketUser {
    /// Returns whether another record is of the same container, or of the process that starts it.
    pub(super) fn is_same(&self, other: &TicketUser) -> bool {
        (&self.container, &self.bundle) == (&other.container, &other.bundle)
            || self.maker == other.maker
    }
}

impl Ticket {
    /// Parses a file. Ignores fields that this version does not know.
    pub(super) fn parse(bytes: &[u8]) -> Result<Ticket> {
        let ticket: Ticket = versioned::parse(bytes, VERSION, "it is not a ticket")?;
        ticket.parse_request().context("its request cannot be parsed")?;
        Ok(ticket)
    }

    /// Parses the request. It is valid in every ticket that [`super::Tickets`] returned.
    pub fn parse_request(&self) -> Result<Request> {
        Request::parse_text(&self.request, Origin::Ticket)
    }

    pub(super) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        versioned::to_bytes(VERSION, self)
    }
}

impl fmt::Display for Ticket {
    /// Describes which engine created the ticket, and when, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "made by {}", Quoted(&self.engine))?;
        if let Some(description) = &self.description {
            write!(f, " for {}", Quoted(description))?;
        }
        write!(f, " at {}", format_rfc3339(self.since))
    }
}

/// Checks properties of the parser for any content of a file.
#[cfg(fuzzing)]
pub(super) fn fuzz(content: &[u8]) {
    if let Ok(ticket) = Ticket::parse(content) {
        assert!(!ticket.to_string().contains(char::is_control));
        let bytes = ticket.to_bytes().expect("a ticket is written");
        assert_eq!(Ticket::parse(&bytes).expect("our own is read"), ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        Ticket {
            boot: "b".to_owned(),
            since: 1_700_000_000,
            made_ms: 7_000,
            request: "vfio=0000:81:10.0;nic=ens1".to_owned(),
            exclusive: vec!["vfio:0000:81:10.0".parse().unwrap()],
            engine: "nomad".to_owned(),
            description: Some("job redis".to_owned()),
            user: None,
        }
    }

    fn text(ticket: &Ticket) -> String {
        String::from_utf8(ticket.to_bytes().unwrap()).unwrap()
    }

    #[test]
    fn a_ticket_s_file_is_one_line() {
        assert_eq!(
            text(&ticket()),
            "{\"version\":1,\"boot\":\"b\",\"since\":1700000000,\"madeMs\":7000,\"request\":\"vfio=0000:81:10.0;nic=ens1\",\
             \"exclusive\":[\"vfio:0000:81:10.0\"],\"engine\":\"nomad\",\"description\":\"job redis\"}\n"
        );
        let mut used = ticket();
        used.user = Some(TicketUser {
            container: "web".parse().unwrap(),
            bundle: "/bundles/web".into(),
            maker: ProcessId { pid: 42, start_time: 7, pid_namespace: 9 },
            state: vec!["/run/runc/web".into()],
            task: Some("/nomad/alloc/1/web/secrets".into()),
            ended_ms: Some(8_000),
        });
        for ticket in [ticket(), used] {
            assert_eq!(Ticket::parse(&ticket.to_bytes().unwrap()).unwrap(), ticket);
        }
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let more = text(&ticket()).replacen('{', "{\"moods\":[1,{\"x\":null}],", 1);
        assert_eq!(Ticket::parse(more.as_bytes()).unwrap(), ticket());
    }

    #[test]
    fn newer_damaged_and_invalid_files_are_rejected() {
        let whole = text(&ticket());
        let refusal = |text: &str| format!("{:#}", Ticket::parse(text.as_bytes()).unwrap_err());
        assert_eq!(
            refusal(&whole.replacen("\"version\":1", "\"version\":2", 1)),
            "it is of version 2, and this program understands 1"
        );
        for damaged in [
            &whole[..whole.len() / 2],
            "",
            "\0\0\0",
            "{}",
            "{\"version\":1}",
            &whole.replacen("[\"vfio:", "[\"../", 1),
            &whole.replacen("1700000000", "-1", 1),
        ] {
            let message = refusal(damaged);
            assert!(message.starts_with("it is not a ticket: "), "{damaged}: {message}");
        }
        for request in ["", "gpu=all", "nic=../a", "nic", "ipc-lock=true", "nic=a;nic=b"] {
            let mut ticket = ticket();
            request.clone_into(&mut ticket.request);
            let message = refusal(&text(&ticket));
            assert!(message.starts_with("its request cannot be parsed: "), "{request}: {message}");
        }
    }

    #[test]
    fn the_line_about_a_ticket_has_no_control_characters() {
        let mut ticket = ticket();
        assert_eq!(
            ticket.to_string(),
            "made by \"nomad\" for \"job redis\" at 2023-11-14T22:13:20Z"
        );
        ticket.engine = "a\n\u{1b}[31m".to_owned();
        ticket.description = Some("b\r".to_owned());
        assert!(!ticket.to_string().contains(char::is_control));
    }
}
