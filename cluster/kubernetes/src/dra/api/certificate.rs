//! The certificate that we show the API server.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use onload_agent::LastMessage;
use onload_sys::text::ErrorChain;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::access::{PemSource, read_context};

/// A certificate whose files are read for each connection: who renews them does so before they expire.
pub(super) struct ClientCertificate {
    certificate: PemSource,
    key: PemSource,
    /// What was read last, and why it could not be read since.
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
            // Files of which one is renewed and the other is not yet do not fit together.
            Err(error) => {
                let error = ErrorChain(error.as_ref()).to_string();
                if last_message.is_new(&error) {
                    tracing::warn!(%error, "the certificate that was read before is shown");
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
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate).collect();
    let chain = chain.with_context(read_context("the client's certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(&key).with_context(read_context("the client's key"))?;
    let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
    certified.with_context(read_context("the client's certificate and key"))
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
            (broken, key.as_str(), "taking the client's certificate"),
            ("", "no key", "taking the client's key"),
            (&file("ca.crt"), &key, "taking the client's certificate and key"),
        ] {
            let error = open(certificate, key);
            assert!(error.starts_with(&format!("{why} for")), "{error}");
        }
    }
}
