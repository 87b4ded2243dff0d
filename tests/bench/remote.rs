//! Runs on an inference server over loopback, against bare calls with `tonic`. The server does no work, so the transport is all there is.

use axum::http::uri::PathAndQuery;
use roiflow::devices;
use roiflow::runtime::{Config, Result};
use roiflow::tensor::Tensor;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use crate::budgets::REMOTE_MORE_US;
use crate::harness::{Clock, Effort};
use crate::kserve::{InferRequest, InferResponse, Served, Server, TensorOf};
use crate::report::Report;

const SHAPE: [usize; 4] = [1, 300, 300, 3];

/// Compares runs with a `u8` image of 300 x 300 pixels with bare calls with the same bytes.
pub fn remote(effort: &Effort, report: &mut Report) -> Result<()> {
    let shape = SHAPE.map(|extent| extent as i64);
    let answer = Tensor::from_slice([1, 100, 7], &[0.5_f32; 700])?;
    let served = Served::computing("boxes", &[("image", "UINT8", &shape)], &[("boxes", "FP32", &[1, 100, 7])], move |_| {
        Ok(vec![("boxes".to_owned(), answer.clone())])
    });
    let server = Server::start(vec![served]);

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().enable_time().build().expect("a runtime");
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).expect("an address");
    let mut client = Grpc::new(runtime.block_on(endpoint.connect()).expect("a connection"));
    let image = TensorOf { name: "image".to_owned(), datatype: "UINT8".to_owned(), shape: shape.to_vec(), ..TensorOf::default() };
    let pixels = vec![7_u8; SHAPE.iter().product()];
    let path = PathAndQuery::from_static("/inference.GRPCInferenceService/ModelInfer");
    let mut bare = || {
        let call = InferRequest {
            model_name: "boxes".to_owned(),
            inputs: vec![image.clone()],
            raw_input_contents: vec![pixels.clone()],
            ..InferRequest::default()
        };
        let response: InferResponse = runtime.block_on(async {
            client.ready().await.expect("a connection");
            let codec = ProstCodec::<InferRequest, InferResponse>::default();
            client.unary(tonic::Request::new(call), path.clone(), codec).await.expect("it runs").into_inner()
        });
        assert_eq!(response.raw_output_contents[0].len(), 2800);
    };

    for (how, address, options) in [
        ("gRPC", server.grpc("boxes"), ""),
        ("HTTP", server.http("boxes"), ""),
        ("gRPC and shared memory", server.grpc("boxes"), "remote.shared-memory=yes"),
    ] {
        let core = devices::core();
        let mut config = Config::default();
        config.set_all(options)?;
        let model = core.compile_model(&core.read_model(address)?, "REMOTE", &config)?;
        let request = model.create_infer_request()?;
        request.input_tensor(())?.view_mut::<u8>()?.fill(7);
        let pairs = effort
            .compare(|n_runs| (0..n_runs).for_each(|_| bare()), |n_runs| (0..n_runs).for_each(|_| request.infer(()).expect("it runs")));
        for clock in [Clock::Wall, Clock::Cpu] {
            let budget = matches!(clock, Clock::Wall).then_some(REMOTE_MORE_US);
            report.more_us(&format!("a run on a server, {how}, 270 kB"), &pairs, clock, budget);
        }
    }
    Ok(())
}
