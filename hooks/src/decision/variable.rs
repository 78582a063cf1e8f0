//! The request that a container's environment holds: for engines that pass a container variables and no
//! annotations.
//!
//! Every image can carry a variable. So one that asks for what the operator allows to none stops no container:
//! it gives nothing, and a warning says what would allow it. Once the operator allows a class in this way, a
//! variable is answered as an annotation is. A ticket needs no word of the operator's: root wrote down what
//! it is good for.

use std::path::PathBuf;

use onload_cdi::oci::{OciConfig, OciConfigError};
use onload_core::class::Class;
use onload_core::lease::{NotToken, Token};
use onload_core::policy::allow_line;
use onload_core::request::{Origin, Request, RequestError, VARIABLE};
use onload_core::ticket::{Ticket, WORD};

use super::pools::PoolsError;
use super::subject::TicketUse;
use crate::host::Settings;

/// Where a task of Nomad has directories of its own, its allocation's last (Nomad, drivers/docker/driver.go,
/// `containerBinds`).
const TASK_MOUNTS: [&str; 3] = ["/secrets", "/local", "/alloc"];

/// Why the variable stops a container.
#[derive(Debug, thiserror::Error)]
pub enum VariableError {
    /// Nobody can say which of its values counts.
    #[error(
        "{VARIABLE} stands in the environment more than once, with different values; remove all but one"
    )]
    Several,
    /// What it asks for is not understood.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// What follows the word is no ticket.
    #[error("{VARIABLE} names no ticket; only an engine can make one")]
    NotTicket(#[from] NotToken),
    /// The ticket is not good.
    #[error("{VARIABLE}")]
    Ticket(#[source] Box<PoolsError>),
}

/// What the variable asks for.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// The request.
    pub request: Request,
    /// The ticket that the request is from.
    pub ticket: Option<TicketUse>,
    /// Why it gives nothing.
    pub warning: Option<String>,
}

/// The values that the variable has in a container's environment, each once and not empty; of many, two.
///
/// # Errors
/// [`OciConfigError`].
pub(crate) fn values(config: &OciConfig) -> Result<Vec<String>, OciConfigError> {
    let mut values: Vec<String> = Vec::new();
    config.each_env(|entry| {
        let value = entry.strip_prefix(VARIABLE);
        let value = value.and_then(|rest| rest.strip_prefix('='));
        let Some(value) = value.map(|value| value.trim_matches(' ')) else {
            return;
        };
        if values.len() < 2 && !value.is_empty() && !values.iter().any(|known| known == value) {
            values.push(value.to_owned());
        }
    })?;
    Ok(values)
}

/// The directory of the host that a container's task alone has, as Nomad's drivers mount it; of a name of
/// theirs that the container has otherwise, none.
pub(crate) fn task(config: &OciConfig) -> Option<PathBuf> {
    let mounts = config.mounts();
    let source = TASK_MOUNTS.iter().find_map(|at| {
        let mount = mounts.iter().find(|mount| mount.is_at(at));
        mount.map(|mount| PathBuf::from(mount.source()))
    });
    source.filter(|source| source.is_absolute())
}

/// What these values ask for. `take` takes a ticket for the container.
///
/// # Errors
/// [`VariableError`]: the container must not start.
pub(crate) fn read(
    values: &[String],
    settings: &Settings,
    take: &dyn Fn(&Token) -> Result<Ticket, PoolsError>,
) -> Result<Asked, VariableError> {
    let is_ticket = values.iter().any(|value| value.starts_with(WORD));
    let value = match values {
        [] => return Ok(Asked::default()),
        all if !is_ticket && settings.config.environment.allow.is_empty() => {
            return Ok(Asked {
                warning: Some(not_allowed(all, settings)),
                ..Asked::default()
            });
        }
        [value] => value,
        _ => return Err(VariableError::Several),
    };
    let Some(id) = value.strip_prefix(WORD) else {
        return Ok(Asked {
            request: Request::of_text(value, Origin::Variable)?,
            ..Asked::default()
        });
    };
    let id: Token = id.parse()?;
    let ticket = take(&id).map_err(|error| VariableError::Ticket(Box::new(error)))?;
    Ok(Asked {
        request: ticket.asked()?,
        ticket: Some(TicketUse {
            id,
            exclusive: ticket.exclusive,
        }),
        warning: None,
    })
}

/// The warning about a variable where the operator allows nothing by it.
fn not_allowed(values: &[String], settings: &Settings) -> String {
    let asked = values.iter().filter_map(|value| {
        let request = Request::of_text(value, Origin::Variable).ok()?;
        Some(request.devices.into_keys().collect::<Vec<Class>>())
    });
    let line = match asked.flatten().collect::<Vec<Class>>() {
        none if none.is_empty() => "a list of classes".to_owned(),
        classes => allow_line(&[], &classes),
    };
    format!(
        "{VARIABLE} of the container's environment gives nothing, since every image can carry it; {line} under [environment] in {} would allow it",
        settings.file.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_core::config::HookConfig;
    use onload_core::text::Chain;
    use onload_core::ticket::TicketError;

    fn settings(allow: &[Class]) -> Settings {
        let mut config = HookConfig::default();
        config.environment.allow = allow.to_vec();
        Settings {
            config,
            file: "/etc/c.toml".into(),
        }
    }

    fn environment(entries: &[&str]) -> Vec<String> {
        let json = serde_json::json!({ "process": { "env": entries } });
        values(&OciConfig::parse(json.to_string().as_bytes()).unwrap()).unwrap()
    }

    /// A ticket whose digits are all 0 is good for a device, and no other is.
    fn asked(entries: &[&str], allow: &[Class]) -> Result<Asked, String> {
        let take = |id: &Token| match id.as_str().trim_matches('0') {
            "" => Ok(Ticket {
                boot: "b".to_owned(),
                since: 0,
                request: "vfio=a".to_owned(),
                exclusive: vec!["vfio:a".parse().unwrap()],
                engine: "nomad".to_owned(),
                description: None,
                user: None,
            }),
            _ => Err(PoolsError::Ticket(Box::new(TicketError::unknown(id)))),
        };
        read(&environment(entries), &settings(allow), &take)
            .map_err(|error| Chain(&error).to_string())
    }

    fn ticket(digit: &str) -> String {
        format!("{VARIABLE}=ticket:{}", digit.repeat(32))
    }

    #[test]
    fn a_container_without_it_asks_for_nothing() {
        for entries in [
            &[][..],
            &["ONLOAD_CTK_REQUEST"],
            &["ONLOAD_CTK_REQUEST="],
            &["ONLOAD_CTK_REQUEST=  "],
            &["ONLOAD_CTK_REQUESTS=nic=all"],
            &["XONLOAD_CTK_REQUEST=nic=all"],
            &["onload_ctk_request=nic=all"],
        ] {
            let asked = asked(entries, &[Class::Nic]).unwrap();
            assert_eq!(asked.request, Request::default(), "{entries:?}");
            assert_eq!((asked.ticket, asked.warning), (None, None));
        }
    }

    #[test]
    fn what_nobody_may_ask_for_in_this_way_is_a_warning_with_the_line_to_add() {
        let asked = asked(&["ONLOAD_CTK_REQUEST=rdma=a;nic=all"], &[]).unwrap();
        assert_eq!(asked.request, Request::default());
        assert_eq!(
            asked.warning.unwrap(),
            "ONLOAD_CTK_REQUEST of the container's environment gives nothing, since every image can carry it; \
             allow = [\"nic\", \"rdma\"] under [environment] in /etc/c.toml would allow it"
        );
    }

    #[test]
    fn no_value_stops_a_container_where_nobody_may_ask_in_this_way() {
        let long = format!("ONLOAD_CTK_REQUEST={}", "x".repeat(64 * 1024));
        for entries in [
            &["ONLOAD_CTK_REQUEST=gpu=\u{1b}[31m\n"][..],
            &["ONLOAD_CTK_REQUEST=nic=a", "ONLOAD_CTK_REQUEST=nic=b"],
            &["ONLOAD_CTK_REQUEST=;;;"],
            &[&long],
        ] {
            let warning = asked(entries, &[]).unwrap().warning.unwrap();
            assert!(warning.len() < 300 && !warning.contains(char::is_control));
        }
    }

    #[test]
    fn where_a_class_is_allowed_a_value_is_answered_as_an_annotation_is() {
        let allow = [Class::Nic];
        let request = asked(&["ONLOAD_CTK_REQUEST=nic=all"], &allow)
            .unwrap()
            .request;
        assert!(request.wants(&[Class::Nic]));
        let twice = ["ONLOAD_CTK_REQUEST=nic=a", "ONLOAD_CTK_REQUEST=nic=a "];
        assert!(asked(&twice, &allow).is_ok());
        let several = ["ONLOAD_CTK_REQUEST=nic=a", "ONLOAD_CTK_REQUEST=nic=b"];
        let refused = asked(&several, &allow).unwrap_err();
        assert!(
            refused.contains("more than once, with different values"),
            "{refused}"
        );
        let long = format!("ONLOAD_CTK_REQUEST=nic={}", "x".repeat(64 * 1024));
        for (entry, why) in [
            (long.as_str(), "ONLOAD_CTK_REQUEST has more than 4096 bytes"),
            ("ONLOAD_CTK_REQUEST=gpu=a", "unknown class \"gpu\""),
            ("ONLOAD_CTK_REQUEST=nic=a\n", "\"a\\n\" cannot be the name"),
        ] {
            let refused = asked(&[entry], &allow).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn a_ticket_needs_no_word_of_the_operator() {
        let asked = asked(&[&ticket("0")], &[]).unwrap();
        let taken = asked.ticket.unwrap();
        assert_eq!(taken.exclusive, ["vfio:a".parse().unwrap()]);
        let origin = &asked.request.devices[&Class::Vfio].origin;
        assert_eq!(*origin, Origin::Ticket("vfio".to_owned()));
    }

    #[test]
    fn a_task_goes_by_the_directory_that_its_engine_gives_it_alone() {
        let of = |mounts: &[(&str, &str)]| {
            let mounts: Vec<String> = mounts
                .iter()
                .map(|(at, from)| format!("{{\"destination\":\"{at}\",\"source\":\"{from}\"}}"))
                .collect();
            let text = format!("{{\"mounts\":[{}]}}", mounts.join(","));
            task(&OciConfig::parse(text.as_bytes()).unwrap())
        };
        let alloc = ("/alloc", "/nomad/1/alloc");
        let secrets = ("/secrets", "/nomad/1/redis/secrets");
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("/secrets/x", "/x"), ("/proc", "proc")]), None);
        assert_eq!(of(&[alloc]), Some(alloc.1.into()));
        assert_eq!(of(&[alloc, secrets]), Some(secrets.1.into()));
        assert_eq!(of(&[("/secrets", "tmpfs"), alloc]), None);
    }

    #[test]
    fn a_ticket_that_is_not_good_stops_the_container() {
        let of = |text: &str| asked(&[text], &[]).unwrap_err();
        assert!(
            of(&ticket("1")).starts_with("ONLOAD_CTK_REQUEST: ticket 11111111… is not known: ")
        );
        for bad in ["", "0f", &"0F".repeat(16), "../../etc/passwd"] {
            let refused = of(&format!("{VARIABLE}=ticket:{bad}"));
            assert!(
                refused.starts_with("ONLOAD_CTK_REQUEST names no ticket"),
                "{refused}"
            );
        }
        let both = [ticket("0"), format!("{VARIABLE}=nic=all")];
        let both: Vec<&str> = both.iter().map(String::as_str).collect();
        assert!(asked(&both, &[]).unwrap_err().contains("more than once"));
    }
}
