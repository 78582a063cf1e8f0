/// The last logged message, so that a message of a repeated attempt is logged once.
#[derive(Clone, Debug, Default)]
pub struct LastMessage(String);

impl LastMessage {
    /// Returns whether a text differs from the last message, and stores it.
    pub fn is_new(&mut self, text: &str) -> bool {
        let is_new = self.0 != text;
        if is_new {
            text.clone_into(&mut self.0);
        }
        is_new
    }

    /// Forgets the message after a success, so that it is logged again if the failure returns.
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
