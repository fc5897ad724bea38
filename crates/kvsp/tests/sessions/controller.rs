//! The controller is killed, and started again with what it kept.

use crate::cast::Cast;
use crate::stream::{BOTH, Sampling, assert_equal};

#[tokio::test]
async fn killed_in_the_middle_of_an_answer() {
    let mut cast = Cast::start().await;
    for sampling in BOTH {
        let whole = cast.whole(sampling).await;
        let tokens = whole.last().unwrap().tokens();
        for after in [1, tokens / 4, tokens / 2] {
            let mut stream = cast.ask(sampling).await;
            let session = stream.session();
            stream.until(after).await;
            let before = cast.session(&session).await;
            let delivered = stream.tokens();
            cast.controller.kill();
            cast.revive_controller();
            let view = cast.session(&session).await;
            let what = format!("{sampling:?}, the controller killed at token {after}: {before}, then {view}");
            assert!(view["epoch"].as_u64() >= before["epoch"].as_u64(), "{what}");
            assert!(view["output_offset"].as_u64() >= before["output_offset"].as_u64(), "{what}");
            if sampling == Sampling::Sampled {
                assert!(view["output_offset"].as_u64() >= Some(delivered), "released unrecorded: {what}");
            }
            assert_equal(&stream.whole().await, &whole, &what);
            cast.two_active().await;
        }
    }
}

/// The instance dies while there is no controller: the next one finds it out, and knows the session.
#[tokio::test]
async fn killed_together_with_the_instance() {
    let mut cast = Cast::start().await;
    for sampling in BOTH {
        let (whole, stream, session) = cast.begin(sampling).await;
        let serving = cast.serving(&session).await;
        cast.controller.kill();
        cast.instances[serving].process.kill();
        cast.revive_controller();
        assert_equal(&stream.whole().await, &whole, &format!("{sampling:?}, controller and instance killed"));
        assert!(cast.moves(&session).await >= 1);
        cast.revive(serving).await;
    }
}
