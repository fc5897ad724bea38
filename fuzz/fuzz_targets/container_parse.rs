//! Any octets: no panic, and a stream of them, cut anywhere, agrees with the whole.
#![no_main]

use bytes::Bytes;
use kvsp_proto::container::{Container, Limits, StreamEvent, StreamParser};
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits { max_octets: 1 << 20, max_layers: 64 };

fn stream(octets: &[u8], piece: usize) -> Option<Vec<StreamEvent>> {
    let mut parser = StreamParser::single(LIMITS);
    let mut events = Vec::new();
    for piece in octets.chunks(piece) {
        parser.push(Bytes::copy_from_slice(piece));
        while let Some(event) = parser.next_event().ok()? {
            events.push(event);
        }
    }
    parser.finish().ok().map(|()| events)
}

fuzz_target!(|input: (u8, &[u8])| {
    let (piece, octets) = input;
    let whole = Container::parse(Bytes::copy_from_slice(octets), &LIMITS);
    let streamed = stream(octets, usize::from(piece) + 1);
    let Ok(container) = whole else {
        assert!(streamed.is_none());
        return;
    };
    let mut expected = vec![StreamEvent::Header(container.header().clone())];
    for layer in container.layers().layers() {
        let sections = container.layer(layer).expect("a layer in the range is held");
        expected.push(StreamEvent::Layer { layer, sections });
    }
    expected.push(StreamEvent::End);
    assert_eq!(streamed, Some(expected));
    let all = container.slice(container.layers()).expect("all layers are held");
    assert_eq!(all.join(), container);
});
