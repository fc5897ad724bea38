//! The gateway is killed, or its client goes away: the client comes back and goes on.

use crate::cast::Cast;
use crate::stream::{BOTH, Stream, assert_equal};
use crate::support::{eventually, get, send};

#[tokio::test]
async fn killed_in_the_middle_of_an_answer() {
    let mut cast = Cast::start().await;
    for sampling in BOTH {
        let (whole, mut stream, session) = cast.begin(sampling).await;
        cast.gateway.kill();
        while stream.next().await.is_some() {}
        assert_ne!(stream.heard.last().unwrap().data, "[DONE]", "it had ended before");
        cast.revive_gateway();
        let rest = Stream::again(&cast.gateway.base(), &session, stream.heard).await;
        assert_equal(&rest.whole().await, &whole, &format!("{sampling:?}, the gateway killed"));
    }
}

/// The instance dies while the client is between two gateways.
#[tokio::test]
async fn killed_together_with_the_instance() {
    let mut cast = Cast::start().await;
    for sampling in BOTH {
        let (whole, mut stream, session) = cast.begin(sampling).await;
        let serving = cast.serving(&session).await;
        cast.gateway.kill();
        cast.instances[serving].process.kill();
        while stream.next().await.is_some() {}
        cast.revive_gateway();
        let rest = Stream::again(&cast.gateway.base(), &session, stream.heard).await;
        assert_equal(&rest.whole().await, &whole, &format!("{sampling:?}, gateway and instance killed"));
        assert!(cast.moves(&session).await >= 1);
        cast.revive(serving).await;
    }
}

#[tokio::test]
async fn a_client_that_went_away_goes_on() {
    let cast = Cast::start().await;
    for sampling in BOTH {
        let whole = cast.whole(sampling).await;
        let mut stream = cast.ask(sampling).await;
        let session = stream.session();
        for after in [1, 20, 60] {
            stream.until(after).await;
            let heard = std::mem::take(&mut stream.heard);
            drop(stream);
            stream = Stream::again(&cast.gateway.base(), &session, heard).await;
        }
        assert_equal(&stream.whole().await, &whole, &format!("{sampling:?}, the client came back"));
    }
    let gateway = cast.gateway.base();
    let unknown = get(&gateway, "v1/streams/6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11").await;
    assert_eq!(unknown.status, 404, "{unknown:?}");
}

/// What a session held is erased at the controller when its answer was delivered.
#[tokio::test]
async fn a_delivered_answer_leaves_no_tokens() {
    let cast = Cast::start().await;
    for sampling in BOTH {
        let stream = cast.ask(sampling).await;
        let session = stream.session();
        stream.whole().await;
        let controller = cast.controller.base();
        let done = eventually("the end of the session", async || {
            let answer = get(&controller, &format!("sessions/{session}")).await;
            (answer.json()["state"] == "done").then_some(answer)
        })
        .await;
        assert_eq!(done.status, 200);
        let checkpoint = get(&controller, &format!("sessions/{session}/checkpoint")).await;
        assert_eq!(checkpoint.status, 404, "{checkpoint:?}");
        let again = send(&controller, "DELETE", &format!("sessions/{session}"), &[], "").await;
        assert!(again.status == 204 || again.status == 404, "{again:?}");
    }
}
