//! The client certificate for the API server.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use onload_agent::LastMessage;
use onload_sys::text::ErrorChain;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SigningKey};

use super::access::{PemSource, read_context};
use super::server_verifier::parse_as_authority;

/// A certificate whose files are read for each connection, since they are renewed before they expire.
pub(super) struct ClientCertificate {
    certificate: PemSource,
    key: PemSource,
    /// The last certificate, and why the files could not be read since.
    last: Mutex<(Arc<CertifiedKey>, LastMessage)>,
}

impl ClientCertificate {
    pub(super) fn open(certificate: PemSource, key: PemSource) -> Result<ClientCertificate> {
        let first = load_certified_key(&certificate, &key)?;
        Ok(ClientCertificate {
            certificate,
            key,
            last: Mutex::new((Arc::new(first), LastMessage::default())),
        })
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").finish_non_exhaustive()
    }
}

impl ResolvesClientCert for ClientCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (certified_key, last_message) = &mut *last;
        match load_certified_key(&self.certificate, &self.key) {
            Ok(now) => {
                *certified_key = Arc::new(now);
                last_message.clear();
            }
            // While only one of the files is renewed, they do not match.
            Err(error) => {
                let error = ErrorChain(error.as_ref()).to_string();
                if last_message.is_new(&error) {
                    tracing::warn!(%error, "keeping the previous client certificate");
                }
            }
        }
        Some(Arc::clone(certified_key))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn load_certified_key(certificate: &PemSource, key: &PemSource) -> Result<CertifiedKey> {
    let (certificate, key) = (certificate.read()?, key.read()?);
    let chain = CertificateDer::pem_slice_iter(&certificate)
        .collect::<Result<Vec<_>, _>>()
        .with_context(read_context("the client's certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(&key).with_context(read_context("the client's key"))?;
    let context = read_context("the client's certificate and key");
    let key =
        aws_lc_rs::default_provider().key_provider.load_private_key(key).with_context(context)?;
    check_pair(&chain, key.as_ref()).with_context(context)?;
    Ok(CertifiedKey::new(chain, key))
}

/// Fails if the first certificate has another key. [`CertifiedKey::keys_match`] does not parse X.509 v1, which MicroK8s
/// 1.34 writes; the parser of authorities does.
fn check_pair(chain: &[CertificateDer<'_>], key: &dyn SigningKey) -> Result<()> {
    let certificate = chain.first().context("certificate not found")?;
    let parsed = parse_as_authority(certificate)?;
    // The parser omits the tag and length of the outer sequence.
    let of_certificate = &parsed.subject_public_key_info;
    match key.public_key() {
        Some(of_key) if !of_key.ends_with(of_certificate) => {
            bail!("the key does not match the certificate")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn file(name: &str) -> String {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/tls");
        fs::read_to_string(directory.join(name)).unwrap()
    }

    #[test]
    fn a_connection_shows_the_certificate_that_is_there_now() {
        let dir = tempfile::tempdir().unwrap();
        let [certificate, key] = ["own.crt", "own.key"].map(|name| dir.path().join(name));
        fs::write(&certificate, file("server.crt")).unwrap();
        fs::write(&key, file("server.key")).unwrap();
        let files = [&certificate, &key].map(|path| PemSource::File(path.clone()));
        let [first, second] = files;
        let own = ClientCertificate::open(first, second).unwrap();
        let length = || own.resolve(&[], &[]).unwrap().cert.len();
        assert_eq!(length(), 1);
        // Another one of the same key.
        let renewed = file("server.crt") + &file("ca.crt");
        fs::write(&certificate, renewed).unwrap();
        assert_eq!(length(), 2);
        // Half of what is renewed, or of what is being written.
        for half in [file("ca.crt"), String::new()] {
            fs::write(&certificate, half).unwrap();
            assert_eq!(length(), 2);
        }
        fs::remove_file(&key).unwrap();
        assert_eq!(length(), 2);
        fs::write(&certificate, file("server.crt")).unwrap();
        fs::write(&key, file("server.key")).unwrap();
        assert_eq!(length(), 1);
    }

    #[test]
    fn keys_of_p_521_and_certificates_of_x_509_v1_are_shown() {
        let open = |certificate: &str, key: &str| {
            let [certificate, key] =
                [certificate, key].map(|name| PemSource::Data(file(name).into_bytes()));
            ClientCertificate::open(certificate, key)
        };
        let own = open("p521-server.crt", "p521-server.key").unwrap();
        let shown = own.resolve(&[], &[]).unwrap();
        assert!(shown.key.choose_scheme(&[SignatureScheme::ECDSA_NISTP521_SHA512]).is_some());
        assert!(open("v1-client.crt", "v1-client.key").is_ok());
        let error = format!("{:#}", open("v1-client.crt", "server.key").unwrap_err());
        assert!(error.ends_with("the key does not match the certificate"), "{error}");
    }

    #[test]
    fn what_cannot_be_shown_at_first_is_refused() {
        let open = |certificate: &str, key: &str| {
            let [certificate, key] =
                [certificate, key].map(|text| PemSource::Data(text.as_bytes().to_vec()));
            let error = ClientCertificate::open(certificate, key).unwrap_err();
            format!("{error:#}")
        };
        let broken = "-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n";
        let key = file("server.key");
        for (certificate, key, why) in [
            (broken, key.as_str(), "reading the client's certificate"),
            ("", "no key", "reading the client's key"),
            (&file("ca.crt"), &key, "reading the client's certificate and key"),
        ] {
            let error = open(certificate, key);
            assert!(error.starts_with(&format!("{why} for")), "{error}");
        }
    }
}
