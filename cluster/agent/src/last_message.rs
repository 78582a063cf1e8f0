/// What was said last, so that what is tried again and again is said once.
#[derive(Clone, Debug, Default)]
pub struct LastMessage(String);

impl LastMessage {
    /// Whether this is something else. It counts as said then.
    pub fn is_new(&mut self, text: &str) -> bool {
        let is_new = self.0 != text;
        if is_new {
            text.clone_into(&mut self.0);
        }
        is_new
    }

    /// What was wrong is right again: it is said when it comes back.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_news_when_it_comes_back() {
        let mut last = LastMessage::default();
        assert!(last.is_new("gone"));
        assert!(!last.is_new("gone"));
        assert!(last.is_new("away"));
        last.clear();
        assert!(last.is_new("away"));
    }
}
