//! The request in a container's environment, for engines that pass variables and no annotations to
//! containers.
//!
//! A single variable requests devices or names a ticket. Variables whose names start with its name only name tickets,
//! so that an engine can reserve in several steps.
//!
//! Any image can set a variable. So if the operator allows no class by variable, a request does not
//! stop the container: it has no effect, and a warning says what would allow it. If the operator
//! allows a class, a variable is treated like an annotation. A ticket needs no permission, since
//! root recorded what it is valid for.

use std::path::PathBuf;

use onload_cdi::oci::{OciConfig, OciConfigError};
use onload_core::class::Class;
use onload_core::device_id::DeviceId;
use onload_core::policy::format_allow_line;
use onload_core::request::{Origin, Request, VARIABLE};
use onload_core::token::Token;
use onload_lease::tickets::{Ticket, WORD};
use onload_sys::error::{Context, Result, bail};

use super::host_view::HookSettings;

/// Maximum number of tickets of one container. An engine reserves once for each kind of device that
/// a task requests.
const MAX_TICKETS: usize = 32;
/// Maximum number of characters after [`VARIABLE`] and `_`.
const MAX_SUFFIX: usize = 32;

/// The mount points of a Nomad task's own directories; the last one belongs to its allocation
/// (Nomad, drivers/docker/driver.go, `containerBinds`).
const TASK_MOUNTS: [&str; 3] = ["/secrets", "/local", "/alloc"];

#[derive(Debug, Default)]
pub(crate) struct VariableRequest {
    pub request: Request,
    /// The devices that the container leases through tickets, each with its ticket.
    pub tickets: Vec<(DeviceId, Token)>,
    /// The reasons why some variables have no effect.
    pub warnings: Vec<String>,
}

/// The request variables of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestVariables {
    /// The different values of [`VARIABLE`] that are not empty, at most two.
    request: Vec<String>,
    /// The names and values of ticket variables that are not empty, at most one more than
    /// [`MAX_TICKETS`].
    tickets: Vec<(String, String)>,
    /// A ticket variable that contains no ticket.
    no_ticket: Option<String>,
}

impl RequestVariables {
    pub(crate) fn from_config(config: &OciConfig) -> Result<RequestVariables, OciConfigError> {
        let mut variables = RequestVariables::default();
        config.each_env(|entry| {
            let Some((name, value)) = entry.split_once('=') else {
                return;
            };
            let Some(suffix) = name.strip_prefix(VARIABLE) else {
                return;
            };
            match value.trim_matches(' ') {
                "" => {}
                value if suffix.is_empty() => variables.add_request(value),
                value if is_variable_suffix(suffix) => variables.add_ticket(name, value),
                _ => {}
            }
        })?;
        Ok(variables)
    }

    fn add_request(&mut self, value: &str) {
        if self.request.len() < 2 && !self.request.iter().any(|known| known == value) {
            self.request.push(value.to_owned());
        }
    }

    fn add_ticket(&mut self, name: &str, value: &str) {
        if !value.starts_with(WORD) {
            self.no_ticket = Some(name.to_owned());
        } else if self.tickets.len() <= MAX_TICKETS
            && !self.tickets.iter().any(|(_, known)| known == value)
        {
            self.tickets.push((name.to_owned(), value.to_owned()));
        }
    }
}

/// Returns whether the suffix after [`VARIABLE`] is that of a ticket variable.
fn is_variable_suffix(suffix: &str) -> bool {
    suffix.strip_prefix('_').is_some_and(|id| {
        (1..=MAX_SUFFIX).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
    })
}

/// Returns the host directory that only this container's task has, as Nomad's drivers mount it.
/// Returns `None` if the container has something else at that mount point.
pub(crate) fn task_dir(config: &OciConfig) -> Option<PathBuf> {
    let mounts = config.mounts();
    let mount = TASK_MOUNTS
        .iter()
        .find_map(|path| mounts.iter().find(|mount| mount.has_destination(path)))?;
    Some(PathBuf::from(mount.source())).filter(|source| source.is_absolute())
}

/// Returns the request of the variables. `find_ticket` finds a ticket for the container. For each
/// class, tickets take precedence over a request in the variable.
pub(crate) fn read(
    variables: &RequestVariables,
    settings: &HookSettings,
    find_ticket: &dyn Fn(&Token) -> Result<Ticket>,
) -> Result<VariableRequest> {
    let mut variable_request = VariableRequest::default();
    if let Some(name) = &variables.no_ticket {
        variable_request.warnings.push(format!(
            "{name} in the container's environment is ignored, because it may contain only an \
             engine's ticket; put a request into {VARIABLE}"
        ));
    }
    let values = variables.request.as_slice();
    let is_ticket = values.iter().any(|value| value.starts_with(WORD));
    let mut request = Request::default();
    let mut ticket_values: Vec<(&str, &str)> = Vec::new();
    match values {
        [] => {}
        values if !is_ticket && settings.config.environment.allow.is_empty() => {
            variable_request.warnings.push(not_allowed_warning(values, settings));
        }
        [value] if is_ticket => ticket_values.push((VARIABLE, value)),
        [value] => request = Request::parse_text(value, Origin::Variable)?,
        _ => bail!(
            "{VARIABLE} is in the environment more than once, with different values; remove all but one"
        ),
    }
    ticket_values
        .extend(variables.tickets.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    for (name, id) in parse_tickets(&ticket_values)? {
        let ticket = find_ticket(&id).context(name)?;
        variable_request.request.add_ticket(ticket.parse_request()?)?;
        let exclusive = ticket.exclusive.into_iter().map(|device| (device, id.clone()));
        variable_request.tickets.extend(exclusive);
    }
    variable_request.request.add_missing(request)?;
    Ok(variable_request)
}

/// Parses all tickets, each once, with the variable that names it. If one is invalid, no ticket is
/// redeemed.
fn parse_tickets<'v>(ticket_values: &[(&'v str, &str)]) -> Result<Vec<(&'v str, Token)>> {
    let mut tickets: Vec<(&str, Token)> = Vec::new();
    for (name, value) in ticket_values {
        let id: Token =
            value.strip_prefix(WORD).unwrap_or_default().parse().with_context(|| {
                format!("{name} contains no ticket; only an engine can create one")
            })?;
        if !tickets.iter().any(|(_, known)| *known == id) {
            tickets.push((name, id));
        }
    }
    if tickets.len() > MAX_TICKETS {
        bail!(
            "the environment names more than {MAX_TICKETS} tickets; let the engine place the task again"
        );
    }
    Ok(tickets)
}

/// Returns the warning about a variable if the operator allows no class by variable.
fn not_allowed_warning(values: &[String], settings: &HookSettings) -> String {
    let mut classes: Vec<Class> = Vec::new();
    for value in values {
        if let Ok(request) = Request::parse_text(value, Origin::Variable) {
            classes.extend(request.devices.into_keys());
        }
    }
    let line = if classes.is_empty() {
        "a list of classes".to_owned()
    } else {
        format_allow_line(&[], &classes)
    };
    format!(
        "{VARIABLE} in the container's environment is ignored, because any image can set it; \
         {line} under [environment] in {} would allow it",
        settings.file.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_core::config::HookConfig;
    use onload_lease::tickets::unknown_error;

    fn settings(allow: &[Class]) -> HookSettings {
        let mut config = HookConfig::default();
        config.environment.allow = allow.to_vec();
        HookSettings { config, file: "/etc/c.toml".into() }
    }

    fn environment(entries: &[&str]) -> RequestVariables {
        let json = serde_json::json!({ "process": { "env": entries } });
        RequestVariables::from_config(&OciConfig::parse(json.to_string().as_bytes()).unwrap())
            .unwrap()
    }

    /// Tickets whose digits are all 0, 2 or 3 are good for a device, and no other is.
    fn asked(entries: &[&str], allow: &[Class]) -> Result<VariableRequest, String> {
        let ticket = |request: &str, exclusive: &[&str]| Ticket {
            boot: "b".to_owned(),
            since: 0,
            made_ms: 0,
            request: request.to_owned(),
            exclusive: exclusive.iter().map(|one| one.parse().unwrap()).collect(),
            engine: "nomad".to_owned(),
            description: None,
            user: None,
        };
        let take = |id: &Token| match id.as_str() {
            zeros if zeros == "0".repeat(32) => Ok(ticket("vfio=a", &["vfio:a"])),
            twos if twos == "2".repeat(32) => Ok(ticket("vfio=b;rdma=r", &["vfio:b"])),
            threes if threes == "3".repeat(32) => Ok(ticket("rdma=r,s;hugepages=2Mi", &[])),
            _ => Err(unknown_error(id)),
        };
        read(&environment(entries), &settings(allow), &take).map_err(|error| format!("{error:#}"))
    }

    fn ticket(digit: &str) -> String {
        format!("{VARIABLE}=ticket:{}", digit.repeat(32))
    }

    fn own_ticket(suffix: &str, digit: &str) -> String {
        format!("{VARIABLE}_{suffix}=ticket:{}", digit.repeat(32))
    }

    /// The requests, as `CLASS=NAMES` for each class.
    fn words(asked: &VariableRequest) -> Vec<String> {
        let devices = asked.request.devices.iter();
        let words = devices.map(|(class, class_devices)| {
            let names: Vec<String> = class_devices.value.iter().map(ToString::to_string).collect();
            format!("{class}={}", names.join(","))
        });
        words.collect()
    }

    #[test]
    fn a_container_without_it_asks_for_nothing() {
        for entries in [
            &[][..],
            &["ONLOAD_CTK_REQUEST"],
            &["ONLOAD_CTK_REQUEST="],
            &["ONLOAD_CTK_REQUEST=  "],
            &["ONLOAD_CTK_REQUESTS=nic=all"],
            &["ONLOAD_CTK_REQUEST_=nic=all"],
            &["ONLOAD_CTK_REQUEST_A="],
            &["ONLOAD_CTK_REQUEST_a=ticket:0"],
            &["ONLOAD_CTK_REQUEST_A-B=nic=all"],
            &["ONLOAD_CTK_REQUEST_A\u{1b}=nic=all"],
            &["XONLOAD_CTK_REQUEST=nic=all"],
            &["onload_ctk_request=nic=all"],
        ] {
            let asked = asked(entries, &[Class::Nic]).unwrap();
            assert_eq!(asked.request, Request::default(), "{entries:?}");
            assert_eq!((asked.tickets, asked.warnings), (vec![], vec![]));
        }
    }

    #[test]
    fn what_nobody_may_ask_for_in_this_way_is_a_warning_with_the_line_to_add() {
        let asked = asked(&["ONLOAD_CTK_REQUEST=rdma=a;nic=all"], &[]).unwrap();
        assert_eq!(asked.request, Request::default());
        assert_eq!(
            asked.warnings,
            [
                "ONLOAD_CTK_REQUEST in the container's environment is ignored, because any image can \
                set it; allow = [\"nic\", \"rdma\"] under [environment] in /etc/c.toml would allow \
                it"
            ]
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
            let warning = asked(entries, &[]).unwrap().warnings.remove(0);
            assert!(warning.len() < 300 && !warning.contains(char::is_control));
        }
    }

    #[test]
    fn where_a_class_is_allowed_a_value_is_answered_as_an_annotation_is() {
        let allow = [Class::Nic];
        let request = asked(&["ONLOAD_CTK_REQUEST=nic=all"], &allow).unwrap().request;
        assert!(request.requests_any(&[Class::Nic]));
        let twice = ["ONLOAD_CTK_REQUEST=nic=a", "ONLOAD_CTK_REQUEST=nic=a "];
        assert!(asked(&twice, &allow).is_ok());
        let several = ["ONLOAD_CTK_REQUEST=nic=a", "ONLOAD_CTK_REQUEST=nic=b"];
        let refused = asked(&several, &allow).unwrap_err();
        assert!(refused.contains("more than once, with different values"), "{refused}");
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
        let [(device, id)] = asked.tickets.as_slice() else { panic!() };
        assert_eq!((device.to_string().as_str(), id.as_str()), ("vfio:a", &*"0".repeat(32)));
        let origin = &asked.request.devices[&Class::Vfio].origin;
        assert_eq!(*origin, Origin::Ticket("vfio".to_owned()));
    }

    #[test]
    fn a_container_gets_what_all_of_its_tickets_are_good_for() {
        let entries = [
            ticket("0"),
            own_ticket("22222222", "2"),
            own_ticket("33333333", "3"),
            own_ticket("AGAIN", "2"),
        ];
        let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
        let asked = asked(&entries, &[]).unwrap();
        assert_eq!(words(&asked), ["rdma=r,s", "vfio=a,b", "hugepages=2Mi"]);
        let devices = asked.tickets.iter().map(|(device, _)| device.to_string());
        assert_eq!(devices.collect::<Vec<_>>(), ["vfio:a", "vfio:b"]);
        assert!(asked.warnings.is_empty());
    }

    #[test]
    fn a_request_stands_beside_tickets_and_gives_no_class_that_they_give() {
        let request = format!("{VARIABLE}=nic=all;vfio=c");
        let entries = [request.as_str(), &own_ticket("A", "0")];
        let allowed = asked(&entries, &[Class::Nic, Class::Vfio]).unwrap();
        assert_eq!(words(&allowed), ["nic=all", "vfio=a"]);
        let origin = |class| &allowed.request.devices[&class].origin;
        assert_eq!(*origin(Class::Nic), Origin::Variable("nic".to_owned()));
        assert_eq!(*origin(Class::Vfio), Origin::Ticket("vfio".to_owned()));
        // An image's variable is ignored where requests by variable are not allowed.
        let denied = asked(&entries, &[]).unwrap();
        assert_eq!((words(&denied), denied.warnings.len()), (vec!["vfio=a".to_owned()], 1));
    }

    #[test]
    fn a_variable_of_a_ticket_that_an_image_fills_gives_nothing_whatever_is_allowed() {
        for value in ["nic=all", "TICKET:0", " ;;", "\u{1b}[31m"] {
            let entry = format!("{VARIABLE}_X={value}");
            let asked = asked(&[&entry], &Class::ALL).unwrap();
            assert_eq!(asked.request, Request::default(), "{value:?}");
            assert_eq!(
                asked.warnings,
                ["ONLOAD_CTK_REQUEST_X in the container's environment is ignored, because it may \
                    contain only an engine's ticket; put a request into ONLOAD_CTK_REQUEST"]
            );
        }
    }

    #[test]
    fn of_several_tickets_one_that_is_not_good_stops_the_container() {
        let refusal = |other: &str| {
            let good = own_ticket("A", "0");
            asked(&[&good, other], &[]).unwrap_err()
        };
        assert!(
            refusal(&own_ticket("B", "1"))
                .starts_with("ONLOAD_CTK_REQUEST_B: ticket 11111111… is unknown: ")
        );
        let message = refusal("ONLOAD_CTK_REQUEST_B=ticket:0f");
        assert!(message.starts_with("ONLOAD_CTK_REQUEST_B contains no ticket"), "{message}");
    }

    #[test]
    fn a_container_has_no_more_tickets_than_an_engine_gives_one() {
        let entries: Vec<String> =
            (0..10_000).map(|number| format!("{VARIABLE}_{number}=ticket:{number:032}")).collect();
        let all: Vec<&str> = entries.iter().map(String::as_str).collect();
        let message = asked(&all, &[]).unwrap_err();
        assert!(message.contains("more than 32 tickets"), "{message}");
        let message = asked(&all[..32], &[]).unwrap_err();
        assert!(message.contains("is unknown"), "{message}");
    }

    #[test]
    fn a_task_goes_by_the_directory_that_its_engine_gives_it_alone() {
        let find_dir = |mounts: &[(&str, &str)]| {
            let mounts: Vec<String> = mounts
                .iter()
                .map(|(at, from)| format!("{{\"destination\":\"{at}\",\"source\":\"{from}\"}}"))
                .collect();
            let text = format!("{{\"mounts\":[{}]}}", mounts.join(","));
            task_dir(&OciConfig::parse(text.as_bytes()).unwrap())
        };
        let alloc = ("/alloc", "/nomad/1/alloc");
        let secrets = ("/secrets", "/nomad/1/redis/secrets");
        assert_eq!(find_dir(&[]), None);
        assert_eq!(find_dir(&[("/secrets/x", "/x"), ("/proc", "proc")]), None);
        assert_eq!(find_dir(&[alloc]), Some(alloc.1.into()));
        assert_eq!(find_dir(&[alloc, secrets]), Some(secrets.1.into()));
        assert_eq!(find_dir(&[("/secrets", "tmpfs"), alloc]), None);
    }

    #[test]
    fn a_ticket_that_is_not_good_stops_the_container() {
        let refusal = |text: &str| asked(&[text], &[]).unwrap_err();
        assert!(
            refusal(&ticket("1")).starts_with("ONLOAD_CTK_REQUEST: ticket 11111111… is unknown: ")
        );
        for bad in ["", "0f", &"0F".repeat(16), "../../etc/passwd"] {
            let refused = refusal(&format!("{VARIABLE}=ticket:{bad}"));
            assert!(refused.starts_with("ONLOAD_CTK_REQUEST contains no ticket"), "{refused}");
        }
        let both = [ticket("0"), format!("{VARIABLE}=nic=all")];
        let both: Vec<&str> = both.iter().map(String::as_str).collect();
        assert!(asked(&both, &[]).unwrap_err().contains("more than once"));
    }
}
