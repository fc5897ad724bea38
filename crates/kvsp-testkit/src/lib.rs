//! Generators, reference models and a hostile peer for the tests of KVSP.
