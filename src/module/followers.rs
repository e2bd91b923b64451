//! What is known of those who may follow or listen: see [`crate::followers`].

use dlock_core::codec::Known;

pub struct Followers {
    pub may_follow: bool,
    /// Whether a log may be read here: a master's, or the append only file's.
    pub may_read: bool,
    /// What all of them know who have read what was logged so far. None where one may begin here.
    pub known: Option<Known>,
    /// Whether this is the only module, so that no other listens; None while that is not known: since the
    /// start, or since another was loaded or taken out.
    pub alone: Option<bool>,
}

impl Default for Followers {
    fn default() -> Self {
        Followers { may_follow: true, may_read: true, known: None, alone: None }
    }
}

impl Followers {
    pub fn may_follow(&self) -> bool {
        self.may_follow
    }

    pub fn modules_may_listen(&self) -> bool {
        self.alone != Some(true)
    }

    /// Whether they can read what stands there in the log that is read here. Then they know what comes of it.
    pub fn can_read(&mut self, place: &Place) -> bool {
        let can = place.builds_on.is_none() || place.builds_on == self.known;
        if can {
            self.known = place.leads_to.or(self.known);
        }
        can
    }
}

/// Where a command of a log stands in it.
pub struct Place {
    /// What its readers have to know to read it; None where it says all itself.
    pub builds_on: Option<Known>,
    pub leads_to: Option<Known>,
}
