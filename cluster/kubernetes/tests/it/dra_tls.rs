//! The API server is asked by TLS alone from a pod, and only if its certificate is of the cluster's authority.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onload_kubernetes::dra::api::{AccessSource, Api};
use onload_kubernetes::names::NodeName;
use onload_sys::text::ErrorChain;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;

const ANSWER: &str = r#"{"kind":"PartialObjectMetadata","metadata":{"name":"n1","uid":"u-1"}}"#;

fn tls(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/tls").join(file)
}

fn acceptor(server: &str) -> TlsAcceptor {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(tls(&format!("{server}.crt")))
            .unwrap()
            .map(Result::unwrap)
            .collect();
    let key = PrivateKeyDer::from_pem_file(tls(&format!("{server}.key"))).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key);
    TlsAcceptor::from(Arc::new(config.unwrap()))
}

/// A server that gives one answer to everything; its port, what it was asked, and whose certificate it shows.
async fn serve() -> (u16, mpsc::UnboundedReceiver<String>, watch::Sender<&'static str>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (asked, receiver) = mpsc::unbounded_channel();
    let (shows, shown) = watch::channel("server");
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor(*shown.borrow());
            // Who does not trust it goes away.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            request.truncate(read);
            asked.send(String::from_utf8(request).unwrap()).unwrap();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{ANSWER}",
                ANSWER.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
            let _ = stream.shutdown().await;
        }
    });
    (port, receiver, shows)
}

/// The access of a pod whose service account has that authority.
fn of_pod(directory: &Path, authority: &[u8], host: &str, port: u16) -> Api {
    fs::write(directory.join("ca.crt"), authority).unwrap();
    fs::write(directory.join("token"), "secret\n").unwrap();
    let variable = |name: &str| match name {
        "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()),
        "KUBERNETES_SERVICE_PORT" => Some(port.to_string()),
        _ => None,
    };
    Api::new(AccessSource::from_pod(variable, directory).unwrap(), Arc::default())
}

#[tokio::test]
async fn a_pod_asks_by_tls_with_its_token() {
    let (port, mut asked, _shows) = serve().await;
    let dir = tempfile::tempdir().unwrap();
    let authority = fs::read(tls("ca.crt")).unwrap();
    let api = of_pod(dir.path(), &authority, "127.0.0.1", port);
    assert_eq!(api.node_uid(&node()).await.unwrap().as_deref(), Some("u-1"));
    let request = asked.recv().await.unwrap();
    assert!(request.starts_with("GET /api/v1/nodes/n1 HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("authorization: Bearer secret\r\n"), "{request}");
}

#[tokio::test]
async fn an_authority_that_is_replaced_is_trusted_from_then_on_and_no_other() {
    let (port, mut asked, shows) = serve().await;
    let dir = tempfile::tempdir().unwrap();
    let [before, next] = ["ca.crt", "next-ca.crt"].map(|file| fs::read(tls(file)).unwrap());
    let api = of_pod(dir.path(), &before, "127.0.0.1", port);
    let path = dir.path().join("ca.crt");
    let half = &next[..next.len() / 2];
    let both = [before.as_slice(), &next].concat();
    for (authorities, server, is_trusted) in [
        (before.as_slice(), "next-server", false),
        (before.as_slice(), "server", true),
        // What is being written takes nothing away.
        (&[], "server", true),
        (half, "server", true),
        (half, "next-server", false),
        (&both, "server", true),
        (&both, "next-server", true),
        (&next, "server", false),
        (&next, "next-server", true),
    ] {
        fs::write(&path, authorities).unwrap();
        shows.send_replace(server);
        let answer = api.node_uid(&node()).await;
        assert_eq!(answer.is_ok(), is_trusted, "{server}: {answer:?}");
        assert_eq!(asked.try_recv().is_ok(), is_trusted);
    }
    fs::remove_file(&path).unwrap();
    assert!(api.node_uid(&node()).await.is_ok());
}

#[tokio::test]
async fn servers_that_kubectl_accepts_are_asked() {
    let (port, mut asked, shows) = serve().await;
    for (authority, server) in [
        ("p521-ca", "p521-server"),
        // A certificate may be its own authority, also if it may sign others.
        ("server", "server"),
        ("self", "self"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let authority = fs::read(tls(&format!("{authority}.crt"))).unwrap();
        shows.send_replace(server);
        let answer = of_pod(dir.path(), &authority, "127.0.0.1", port).node_uid(&node()).await;
        assert!(answer.is_ok() && asked.try_recv().is_ok(), "{server}: {answer:?}");
    }
}

#[tokio::test]
async fn a_server_of_another_authority_name_or_time_is_told_nothing() {
    let (port, mut asked, shows) = serve().await;
    let read = |name: &str| fs::read(tls(name)).unwrap();
    let (server, expired) = ("server", "expired");
    for (shown, authority, host, why) in [
        (server, read("ca.crt"), "localhost", "certificate not valid for name"),
        (server, read("server.crt"), "localhost", "use an address that the certificate contains"),
        (server, read("next-ca.crt"), "127.0.0.1", "ca.crt; add the cluster's"),
        (server, Vec::new(), "127.0.0.1", "not signed by an authority in "),
        (expired, read("expired.crt"), "127.0.0.1", "certificate expired"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        shows.send_replace(shown);
        let api = of_pod(dir.path(), &authority, host, port);
        let error = api.node_uid(&node()).await.unwrap_err();
        let line = ErrorChain(&error).to_string();
        let begin = "reading Node n1: the API server cannot be reached: the server's certificate ";
        assert!(line.starts_with(begin) && line.contains(why), "{line}");
        assert!(error.no_access_reason().is_some());
    }
    assert!(asked.try_recv().is_err());
}

fn node() -> NodeName {
    "n1".parse().unwrap()
}
