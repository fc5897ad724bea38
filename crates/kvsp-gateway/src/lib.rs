//! An OpenAI-compatible gateway that places requests by KVSP.
