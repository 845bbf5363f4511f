//! What a mapping reads, for whoever writes it: the test kit.

use http::HeaderName;

use super::mapping::{Lookup, Mapping, Place};
use crate::verify::IdForm;

/// Where one part of an envelope is to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written<'m> {
    pub(crate) place: &'m Place,
    /// Says the same, where the producer sends it.
    pub(crate) agrees: Option<&'m HeaderName>,
}

/// Where all parts are to be written.
#[derive(Debug)]
pub(crate) struct Places<'m> {
    pub(crate) event_id: Written<'m>,
    pub(crate) id_form: IdForm,
    pub(crate) event_type: Option<Written<'m>>,
    pub(crate) correlation_id: Option<Written<'m>>,
    pub(crate) sequence: Option<Written<'m>>,
    pub(crate) attempt: Option<&'m HeaderName>,
    pub(crate) first_sent_at: Option<&'m HeaderName>,
    pub(crate) replay_of: Option<&'m HeaderName>,
}

impl Mapping {
    pub(crate) fn places(&self) -> Places<'_> {
        fn written(lookup: &Option<Lookup>) -> Option<Written<'_>> {
            lookup.as_ref().map(Lookup::written)
        }
        // Each of them is needed: a part that is new in a mapping must not be forgotten here.
        let Self {
            event_id,
            event_type,
            correlation_id,
            sequence,
            version: _,
            first_sequence: _,
            order_required: _,
            attempt,
            first_sent_at,
            replay_of,
            content: _,
            control: _,
            replay: _,
            handshake: _,
        } = self;
        Places {
            event_id: event_id.written(),
            id_form: event_id.form,
            event_type: written(event_type),
            correlation_id: written(correlation_id),
            sequence: written(sequence),
            attempt: attempt.as_ref(),
            first_sent_at: first_sent_at.as_ref(),
            replay_of: replay_of.as_ref(),
        }
    }
}

impl Lookup {
    fn written(&self) -> Written<'_> {
        Written {
            place: &self.place,
            agrees: self.agrees.as_ref(),
        }
    }
}
