//! What the agents of cluster engines share.
