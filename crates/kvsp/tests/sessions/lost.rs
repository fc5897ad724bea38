//! Every replica is gone: the front end gives the prompt, and all is computed anew.

use crate::cast::Cast;
use crate::stream::{BOTH, assert_equal};
use crate::support::metric;

#[tokio::test]
async fn every_replica_deleted() {
    let mut cast = Cast::start().await;
    for sampling in BOTH {
        let whole = cast.whole(sampling).await;
        // What both instances have kept of the prompt goes with them.
        for at in 0..2 {
            cast.revive(at).await;
        }
        cast.empty();
        cast.two_active().await;
        let mut stream = cast.ask(sampling).await;
        let session = stream.session();
        stream.until(30).await;
        let serving = cast.serving(&session).await;
        cast.empty();
        cast.instances[serving].process.kill();
        assert_equal(&stream.whole().await, &whole, &format!("{sampling:?}, every replica deleted"));
        assert!(cast.moves(&session).await >= 1);
        let survivor = cast.instances[1 - serving].process.uri("admin");
        let asked = metric(&survivor, "kvsp_session_prompts_needed_total").await;
        assert!(asked >= 1, "{sampling:?}: the survivor had the prompt after all");
        cast.revive(serving).await;
    }
}
