//! The log of an agent that a test has started.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take. Tests wait for what they expect; only a failing one waits that long.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Lines as they come. A test that fails shows them.
#[derive(Debug)]
pub struct Log {
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Log {
    /// Without a stream, no line ever comes.
    pub fn from_stream(stream: Option<impl Read + Send + 'static>) -> Log {
        let (sender, lines) = channel();
        if let Some(stream) = stream {
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Log { lines, seen: Vec::new() }
    }

    /// Waits for a line with all of these words, and returns it.
    #[track_caller]
    pub fn line(&mut self, words: &[&str]) -> Value {
        self.times(1, words);
        let has = |line: &&String| words.iter().all(|word| line.contains(word));
        serde_json::from_str(self.seen.iter().find(has).unwrap()).unwrap()
    }

    /// Waits until so many lines have all of these words.
    #[track_caller]
    pub fn times(&mut self, times: usize, words: &[&str]) {
        let end = Instant::now() + PATIENCE;
        while self.count(words) < times {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("fewer than {times} lines have {words:?}:\n{}", self.seen.join("\n"));
            };
            self.seen.push(line);
        }
    }

    /// How many of the lines that came have all of these words.
    pub fn count(&mut self, words: &[&str]) -> usize {
        self.seen.extend(self.lines.try_iter());
        let has = |line: &&String| words.iter().all(|word| line.contains(word));
        self.seen.iter().filter(has).count()
    }

    /// All of it, when the agent has ended.
    pub fn whole(&mut self) -> String {
        self.seen.extend(self.lines.iter());
        self.seen.join("\n")
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if thread::panicking() {
            self.seen.extend(self.lines.try_iter());
            let _ = writeln!(std::io::stderr(), "{}", self.seen.join("\n"));
        }
    }
}
