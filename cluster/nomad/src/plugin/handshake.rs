//! go-plugin's handshake: variables in the plugin's environment, and the line that the host reads from the plugin's
//! standard output.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The variable by which a plugin detects that Nomad started it (plugins/base/plugin.go).
const COOKIE: &str = "NOMAD_PLUGIN_MAGIC_COOKIE";
const COOKIE_VALUE: &str = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255";
/// The plugin protocol versions that the host supports, separated by commas.
const VERSIONS: &str = "PLUGIN_PROTOCOL_VERSIONS";
/// The plugin protocol version of this plugin.
const VERSION: &str = "2";
/// A certificate of the host, set if the connection must be encrypted.
const CLIENT_CERT: &str = "PLUGIN_CLIENT_CERT";
const SOCKET_DIR: &str = "PLUGIN_UNIX_SOCKET_DIR";
const SOCKET_GROUP: &str = "PLUGIN_UNIX_SOCKET_GROUP";
/// Set if the host supports multiplexing, for which the line has a seventh field.
const MULTIPLEX: &str = "PLUGIN_MULTIPLEX_GRPC";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    pub socket_dir: PathBuf,
    multiplex: bool,
}

pub fn is_started_by_nomad(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    variable(COOKIE).is_some_and(|cookie| cookie == COOKIE_VALUE)
}

impl Handshake {
    pub fn from_environment(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        if !is_started_by_nomad(variable) {
            bail!(
                "this is a plugin that Nomad starts; put it into the agent's plugin_dir, and add \
                 `plugin \"onload-nomad-device\" {{}}` in the agent's configuration"
            );
        }
        if let Some(versions) = variable(VERSIONS) {
            let versions = versions.to_string_lossy();
            if !versions.split(',').any(|version| version == VERSION) {
                bail!(
                    "Nomad uses version {versions} of its plugin protocol, but this plugin has \
                     version {VERSION}; use matching releases of onload-ctk and Nomad"
                );
            }
        }
        if variable(CLIENT_CERT).is_some() {
            bail!(
                "the caller requires an encrypted connection ({CLIENT_CERT}), which this plugin \
                 does not support; disable AutoMTLS in the caller"
            );
        }
        if variable(SOCKET_GROUP).is_some() {
            bail!(
                "the caller requires a socket for a group ({SOCKET_GROUP}), which this plugin does \
                 not support; run the caller as the user of the plugin"
            );
        }
        Ok(Handshake {
            socket_dir: variable(SOCKET_DIR)
                .unwrap_or_else(|| variable("TMPDIR").unwrap_or_else(|| OsString::from("/tmp")))
                .into(),
            multiplex: variable(MULTIPLEX).is_some(),
        })
    }

    /// Returns the line for the host: go-plugin's version, plugin protocol version, socket, protocol, and an empty
    /// certificate. Old hosts reject a seventh field.
    pub fn to_line(&self, socket: &Path) -> String {
        let multiplex = if self.multiplex { "|false" } else { "" };
        format!("1|{VERSION}|unix|{}|grpc|{multiplex}\n", socket.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Handshake> {
        let all: Vec<(&str, &str)> =
            [(COOKIE, COOKIE_VALUE)].into_iter().chain(variables.iter().copied()).collect();
        Handshake::from_environment(|name| {
            all.iter()
                .rev()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn a_plugin_knows_its_host_by_the_cookie() {
        assert!(read(&[]).is_ok());
        for cookie in ["other", ""] {
            let refused = read(&[(COOKIE, cookie)]).unwrap_err().to_string();
            assert!(refused.starts_with("this is a plugin that Nomad starts"), "{refused}");
        }
    }

    #[test]
    fn the_line_has_as_many_fields_as_the_host_reads() {
        let socket = Path::new("/tmp/a/plugin.sock");
        let line = |variables| read(variables).unwrap().to_line(socket);
        assert_eq!(line(&[(VERSIONS, "2")]), "1|2|unix|/tmp/a/plugin.sock|grpc|\n");
        assert_eq!(line(&[(MULTIPLEX, "true")]), "1|2|unix|/tmp/a/plugin.sock|grpc||false\n");
        assert_eq!(line(&[(MULTIPLEX, "")]), "1|2|unix|/tmp/a/plugin.sock|grpc|\n");
    }

    #[test]
    fn another_version_is_refused() {
        assert!(read(&[(VERSIONS, "1,2,3")]).is_ok());
        let refused = read(&[(VERSIONS, "3,22")]).unwrap_err().to_string();
        assert!(refused.starts_with("Nomad uses version 3,22 of "), "{refused}");
    }

    #[test]
    fn encryption_and_groups_are_refused_by_name() {
        let encrypted = read(&[(CLIENT_CERT, "-----BEGIN")]).unwrap_err();
        assert!(encrypted.to_string().contains("(PLUGIN_CLIENT_CERT)"), "{encrypted}");
        let group = read(&[(SOCKET_GROUP, "nomad")]).unwrap_err();
        assert!(group.to_string().contains("(PLUGIN_UNIX_SOCKET_GROUP)"), "{group}");
    }

    #[test]
    fn the_socket_is_where_the_host_wants_it() {
        let dir = |variables| read(variables).unwrap().socket_dir;
        assert_eq!(
            dir(&[(SOCKET_DIR, "/run/nomad"), ("TMPDIR", "/var/tmp")]),
            Path::new("/run/nomad")
        );
        assert_eq!(dir(&[("TMPDIR", "/var/tmp")]), Path::new("/var/tmp"));
        assert_eq!(dir(&[]), Path::new("/tmp"));
    }
}
