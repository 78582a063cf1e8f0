//! Two connections multiplexed on one socket: each frame has a connection number, a length (both 32 bits, big-endian)
//! and that many bytes. The bytes of a connection are a stream, so a message may begin or end inside a frame.

use std::io::{self, Read, Write};

use onload_sys::bail;
use onload_sys::error::{Context, Result};

use super::ttrpc::{self, HEADER, MAX_MESSAGE, TtrpcMessage};

/// The connection on which the runtime calls this plugin (pkg/net/multiplex/ttrpc.go).
pub const PLUGIN: u32 = 1;
/// The connection on which this plugin calls the runtime.
pub const RUNTIME: u32 = 2;

/// Limit for the content of a sent frame in bytes. The runtime reads a frame into a buffer that may be only this large,
/// and fails if the frame does not fit (`conn.Read` in mux.go, ENOMEM).
pub const MAX_SENT: usize = 4096;

/// Limit for the content of a received frame in bytes: the size of the longest message. The runtime splits longer
/// content into several frames.
const MAX_RECEIVED: usize = HEADER + MAX_MESSAGE;

const FRAME_HEADER: usize = 8;

/// Maximum number of bytes that are allocated and read at once.
const PIECE: usize = 64 * 1024;

#[derive(Debug)]
pub struct Mux<S> {
    stream: S,
    /// For each connection, the received bytes that are not parsed yet.
    begun: [(u32, Vec<u8>); 2],
}

impl<S: Read + Write> Mux<S> {
    pub fn new(stream: S) -> Self {
        Mux { stream, begun: [(PLUGIN, Vec::new()), (RUNTIME, Vec::new())] }
    }

    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Returns the next message and its connection. After an error the connection cannot be used further.
    pub fn receive(&mut self) -> Result<(u32, TtrpcMessage)> {
        loop {
            for (connection, begun) in &mut self.begun {
                if let Some(message) = ttrpc::parse_message(begun)? {
                    return Ok((*connection, message));
                }
            }
            self.read_frame()?;
        }
    }

    /// Reads a frame. Discards its content if the connection number is unknown.
    fn read_frame(&mut self) -> Result<()> {
        let mut header = [0; FRAME_HEADER];
        self.read_exact(&mut header)?;
        let [a, b, c, d, e, f, g, h] = header;
        let connection = u32::from_be_bytes([a, b, c, d]);
        let length = usize::try_from(u32::from_be_bytes([e, f, g, h])).unwrap_or(usize::MAX);
        if length > MAX_RECEIVED {
            bail!(
                "the runtime sent a frame of {length} bytes, but the protocol allows \
                 {MAX_RECEIVED}; is this an NRI socket?"
            );
        }
        let mut remaining = length;
        while remaining > 0 {
            // Memory is allocated only as bytes arrive.
            let mut piece = vec![0; remaining.min(PIECE)];
            self.read_exact(&mut piece)?;
            remaining -= piece.len();
            let known = self.begun.iter_mut().find(|(id, _)| *id == connection);
            if let Some((_, begun)) = known {
                begun.extend(piece);
            }
        }
        Ok(())
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        let result = self.stream.read_exact(buffer);
        unless_closed(result, io::ErrorKind::UnexpectedEof)?.context("reading from the runtime")
    }

    /// Sends a message in frames of its own, since the runtime's buffer for the end of the previous message may have no
    /// room for more. After an error the connection cannot be used further.
    pub fn send(&mut self, connection: u32, message: &TtrpcMessage) -> Result<()> {
        let bytes = ttrpc::encode(message)?;
        for content in bytes.chunks(MAX_SENT) {
            let mut frame = Vec::with_capacity(FRAME_HEADER + content.len());
            frame.extend(connection.to_be_bytes());
            let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
            frame.extend(length.to_be_bytes());
            frame.extend(content);
            let result = self.stream.write_all(&frame);
            unless_closed(result, io::ErrorKind::BrokenPipe)?.context("writing to the runtime")?;
        }
        Ok(())
    }
}

/// Fails if the error means that the runtime closed the connection. Returns other results unchanged.
fn unless_closed(result: io::Result<()>, closed: io::ErrorKind) -> Result<io::Result<()>> {
    let kind = result.as_ref().err().map(io::Error::kind);
    if kind.is_some_and(|kind| kind == closed || kind == io::ErrorKind::ConnectionReset) {
        bail!("the runtime closed the connection");
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    const CLOSED: &str = "the runtime closed the connection";

    #[derive(Default)]
    struct Both {
        from: Cursor<Vec<u8>>,
        to: Vec<u8>,
    }

    impl Read for Both {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.from.read(into)
        }
    }

    impl Write for Both {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.to.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn reading(bytes: &[u8]) -> Mux<Both> {
        Mux::new(Both { from: Cursor::new(bytes.to_vec()), to: Vec::new() })
    }

    fn frame(connection: u32, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap();
        [&connection.to_be_bytes(), &length.to_be_bytes(), content].concat()
    }

    fn message(stream: u32, body: &[u8]) -> TtrpcMessage {
        TtrpcMessage { stream, kind: ttrpc::REQUEST, flags: 0, body: body.to_vec() }
    }

    #[test]
    fn a_message_is_put_together_from_frames_of_any_length() {
        let whole = message(1, &vec![7; 10_000]);
        let bytes = ttrpc::encode(&whole).unwrap();
        for size in [1, 3, 4096, 9999, 20_000] {
            let frames: Vec<u8> =
                bytes.chunks(size).flat_map(|content| frame(PLUGIN, content)).collect();
            let (_, received) = reading(&frames).receive().unwrap();
            assert_eq!(received, whole, "{size}");
        }
    }

    #[test]
    fn messages_of_two_connections_come_apart_however_their_frames_are_mixed() {
        let (one, two) = (message(1, b"one"), message(3, b"two"));
        let (first, second) = (ttrpc::encode(&one).unwrap(), ttrpc::encode(&two).unwrap());
        let bytes = [
            frame(PLUGIN, &first[..5]),
            frame(RUNTIME, &second[..9]),
            frame(9, b"of a connection that was not opened"),
            frame(RUNTIME, &[&second[9..], &second[..]].concat()),
            frame(PLUGIN, &first[5..]),
        ];
        let mut mux = reading(&bytes.concat());
        let mut next = || mux.receive().unwrap();
        assert_eq!(next(), (RUNTIME, two.clone()));
        assert_eq!(next(), (RUNTIME, two));
        assert_eq!(next(), (PLUGIN, one));
        assert_eq!(mux.receive().unwrap_err().to_string(), CLOSED);
    }

    #[test]
    fn a_frame_longer_than_any_message_ends_the_connection() {
        let mut bytes = PLUGIN.to_be_bytes().to_vec();
        bytes.extend(u32::try_from(MAX_RECEIVED + 1).unwrap().to_be_bytes());
        let refused = reading(&bytes).receive().unwrap_err().to_string();
        assert!(refused.starts_with("the runtime sent a frame of 4194315 bytes"), "{refused}");
    }

    #[test]
    fn a_frame_that_is_cut_short_is_a_closed_connection() {
        let bytes = frame(PLUGIN, b"0123456789");
        for length in 0..bytes.len() {
            let refused = reading(&bytes[..length]).receive().unwrap_err();
            assert_eq!(refused.to_string(), CLOSED, "{length}");
        }
    }

    #[test]
    fn what_is_sent_is_cut_so_that_no_frame_has_more_than_the_runtime_can_take() {
        for length in [0, 1, MAX_SENT - HEADER, MAX_SENT, 3 * MAX_SENT + 1] {
            let sent = message(5, &vec![9; length]);
            let mut mux = reading(&[]);
            mux.send(RUNTIME, &sent).unwrap();
            mux.send(RUNTIME, &sent).unwrap();
            let bytes = mux.stream().to.clone();
            let mut at = 0;
            while at < bytes.len() {
                let length = u32::from_be_bytes(bytes[at + 4..at + 8].try_into().unwrap());
                assert!(length <= 4096, "{length}");
                at += 8 + usize::try_from(length).unwrap();
            }
            let mut back = reading(&bytes);
            assert_eq!(back.receive().unwrap().1, sent);
            assert_eq!(back.receive().unwrap().1, sent);
        }
    }
}
