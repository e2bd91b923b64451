//! What is known of those who may follow or listen: see [`crate::followers`].

pub struct Followers {
    may_follow: bool,
    /// Whether this is the only module, so that no other listens; None while that is not known.
    alone: Option<bool>,
}

impl Default for Followers {
    fn default() -> Self {
        Followers { may_follow: true, alone: None }
    }
}

impl Followers {
    /// Somebody may follow from now on.
    pub fn may_begin(&mut self) {
        self.may_follow = true;
    }

    pub fn none_follow(&mut self) {
        self.may_follow = false;
    }

    pub fn may_follow(&self) -> bool {
        self.may_follow
    }

    /// Another module was loaded, or taken out: who listens has to be asked again.
    pub fn modules_changed(&mut self) {
        self.alone = None;
    }

    pub fn modules_are_known(&self) -> bool {
        self.alone.is_some()
    }

    /// How many are loaded, this one included, as far as the server tells.
    pub fn count_modules(&mut self, count: Option<usize>) {
        self.alone = Some(count == Some(1));
    }

    pub fn modules_may_listen(&self) -> bool {
        self.alone != Some(true)
    }
}
