"""Chinese texts of the reference page of config.yml: the frame, and the meaning of each key."""

from __future__ import annotations

from pipeline.config.reference import Words

_HEAD = """\
# config.yml 配置项

[English](config.md)

由 `paddlewheel config --language zh` 打印。`--print-config` 打印某个服务实际生效的配置。

只写键而不给值，等同于没有写。未知的键会被拒绝，并提示最接近的已知键。
Paddle Serving 会忽略的未知键，在这里也被忽略并给出警告，除非它像是拼错的键。

值中的 `${NAME}` 替换为环境变量；`${NAME:-default}` 在变量没有设置或为空时取 default。\
没有默认值而变量未设置，则报错。在 `[...]` 或 `{...}` 里要加引号；加了引号的值仍是文本。`$${` 表示 `${` 本身。

在本版本中读取并检查、但不起作用：`op.<name>.{client_config, encryption_key}`、\
`op.<name>.local_service_conf.{concurrency, workdir}`。设置后会被拒绝：`op.<name>.use_encryption_model`。
"""
_SERVING_YML = """\
# serving.yml 配置项

模型旁边的 `serving.yml` 对输入和输出的说明：`inputs` 以客户端发送时所用的名字为键，\
`outputs` 以模型输出的别名为键。\
`paddlewheel new` 会写好这两项。`kind: tensor` 表示原样的输入或输出，没有其他键。
"""
_MEANINGS = {  # by section, then by key
    "": {
        "http_port": "HTTP 端口；http_port 与 rpc_port 至少要有一个。",
        "rpc_port": "gRPC 端口；不写则为 http_port + 1；off：不开。",
        "http_address": "HTTP 端口监听的地址；不写则监听本机所有地址。",
        "rpc_address": "gRPC 端口监听的地址，同上。",
        "worker_num": "build_dag_each_worker 为 true 时，实例数乘以它。",
        "build_dag_each_worker": "每个 Op 的实例数乘以 worker_num。",
        "shards": "各自接收 HTTP 请求并运行模型的进程数，仅限一个 Op 的服务；1：请求都经过前端；"
        "`auto`：每个核一个，实测至少快一成才用。不写：Op 另有 `auto`、模型旁有 sample.jsonl 时即 `auto`。",
        "dag": "对整个请求生效的设置。",
        "op": "每个 Op 一段，以它的名字为键。",
        "v2": "只与 KServe v2 协议有关的设置。",
        "logging": "日志写到哪里、怎么写。来不及读走的行会丢弃，并计数。",
        "tls": "证书；不写则为明文 HTTP 和 gRPC。",
        "security": "谁可以访问。",
        "limits": "接受的各项上限。",
        "trace": "请求的 trace，与 Triton 相同。",
        "nodes": "运行 worker 的其他机器；不写：都在本机运行。",
    },
    "nodes": {
        "agents": "每台机器上 `paddlewheel agent` 的地址，HOST:PORT；worker 依次分布在各机器上。",
        "token_file": "与 agent 共用的口令文件，至少 16 个字符。",
        "ca_file": "签发 agent 证书的机构的 PEM 文件；不写：连接不加密。",
        "timeout": "连接上超过这么多秒没有任何数据，就认为该机器已丢失，由其他机器处理它的请求。",
    },
    "trace": {
        "mode": "triton：写入 JSON 文件；opentelemetry：以 OTLP（HTTP）把 span 发给收集器。",
        "level": (
            "TIMESTAMPS：每个请求的各个时刻；TENSORS：还有输入和输出，只用于 triton 模式；"
            "不写：在客户端设置级别之前不跟踪。"
        ),
        "rate": "每 rate 个请求跟踪一个。带有请求头 `traceparent` 的请求总会跟踪；0：只跟踪这些请求。",
        "count": "收集这么多个 trace 后停止；-1：不限。",
        "trace_file": "triton 模式下 trace 的文件；不写：不能跟踪请求。",
        "log_frequency": "每个文件的 trace 数，依次为 FILE.0、FILE.1……；0：都写在一个文件里。",
        "url": "opentelemetry 模式下收集器的地址。",
        "resource": "span 中服务器的属性，写作 KEY=VALUE；`service.name` 是它的名字。",
        "bsp_max_queue_size": "等待写出或发送的 trace 数上限，超出的丢弃并计数。",
        "bsp_schedule_delay": "两次向收集器发送之间的毫秒数。",
        "bsp_max_export_batch_size": "一次发送的 span 数；等待的达到这个数就立即发送。",
    },
    "dag": {
        "is_thread_op": (
            "没有 Paddle 模型的 Op，其实例是同一进程里的线程；false：各是一个进程。"
            "op.<name>.placement 优先于它。"
        ),
        "retry": "某个 Op 的 `timeout` 最终耗尽时，整个请求总共尝试的次数。",
        "client_type": "写了 server_endpoints 而没写 client_type 的 Op 所用的 client_type。",
        "use_profile": "Server-Timing：HTTP 应答的头，gRPC 的尾部元数据。",
        "tracer": "日志中的汇总。",
        "enable_prometheus": "/metrics 中也给出 Paddle Serving 自己的计数器 `pd_*`。",
        "prometheus_port": "enable_prometheus 为 true 时，另在这个端口上只提供 /metrics。",
        "channel_size": "限制接纳的请求数；0：不另设限制。",
        "channel_recv_frist_arrive": "汇合处收到第一个输入就继续。",
        "max_pending_requests": "已接纳而未应答的请求数上限；0：取 channel_size，没有则为 1000。",
        "max_pending_rows": "已接纳而未应答的请求的总行数上限；只有一个请求时可以超过。",
        "request_timeout": "一个请求总共可用的秒数；0：没有截止时间。",
        "drain_delay": "收到 SIGTERM 后照常服务的秒数，此时已报告未就绪。",
        "drain_timeout": "收到 SIGTERM 后，留给已接纳请求的秒数。",
        "http_errors": "original：与 Paddle Serving 一样返回 HTTP 200 和 err_no；status：返回 4xx 和 5xx。",
        "max_hops": "一个请求最多跳转（jump_to_ops）的次数。",
    },
    "dag.tracer": {
        "interval_s": "日志中每隔多少秒写一行各 Op 的工作情况；-1：不写。",
    },
    "op.<name>": {
        "concurrency": "这个 Op 的实例数。",
        "max_concurrency": (
            "这个 Op 的最大实例数：请求等待超过 `scale_wait` 时启动更多工作进程，一分钟不再需要后结束。"
            "不写：始终为 `concurrency`。"
        ),
        "scale_wait": "预计排队超过这么多秒时，`max_concurrency` 增加实例。",
        "placement": (
            "process：每个实例一个进程；thread：各实例是同一进程里的线程；`auto`：按 dag.is_thread_op；"
            "没有写它、而该 Op 另有 `auto` 时，按本机实测选择。"
            "Paddle 模型的实例总是各占一个进程。"
        ),
        "timeout": (
            "这个 Op 一次尝试可用的毫秒数，从实例开始处理时算起；-1、0：不单独设限。超时的调用被放弃，"
            "如果它仍在运行，其工作进程会被替换。写了 server_endpoints 时：一次调用的毫秒数；-1、0："
            "取 dag.request_timeout。"
        ),
        "retry": (
            "`timeout` 耗尽时，这个 Op 总共尝试的次数；0 和 1：只试一次。写了 server_endpoints 时，"
            "端点失败也算；每次尝试换下一个端点。"
        ),
        "batch_size": (
            "合并进一个预测批次的最大请求数；`auto`：最多 32，按本机测得的时间，每次取总耗时最少的数量。"
            "pipeline_grpc 不合并请求；值越大，一个实例同时进行的调用越多。"
        ),
        "auto_batching_timeout": (
            "未满的批次等待的毫秒数，从其中最早的请求算起；0 和 -1：只为刚得到应答的调用方稍等，最多 5 毫秒。"
        ),
        "max_batch_rows": "一次交给预测器的最大行数。",
        "max_batch_tokens": "一次交给预测器的最大元素数（行数 x 最长的一行）。",
        "length_buckets": "补齐后的批次向上取整到的长度；不写则由程序选择。",
        "padding": "可以补齐的轴；不写则按模型目录的声明。",
        "run_timeout": (
            "一次运行超过这么多秒，其工作进程就被杀死并替换；0 或不写：最晚的截止时间或 `timeout` 之后 5 秒。"
        ),
        "start_timeout": "进程启动后，一个实例完成 init_op、加载和预热可用的秒数。",
        "probe_interval": (
            "实例空闲这么多秒后再运行一次模型，以确认仍然就绪；失败或挂起的实例会被替换。0：从不。"
        ),
        "max_requests_per_worker": "一个工作进程应答这么多请求后，换成新的。",
        "max_worker_rss": "工作进程的常驻内存上限，单位 MB（10^6 字节）；超过就换成新的。",
        "crash_retry": "工作进程死掉或挂起后，它的请求在其他实例上各自单独重新运行。",
        "warmup": "先运行一次预测器，实例才算就绪。",
        "local_service_conf": "在本服务的工作进程里运行的模型。",
        "server_endpoints": (
            "运行这个 Op 的模型的各服务，host:port，轮流调用，失败的跳过。写了它就不使用 local_service_conf。"
        ),
        "client_type": (
            "server_endpoints 使用的协议：grpc 是 gRPC 上的 KServe v2（例如 Triton），"
            "pipeline_grpc 是另一个 Pipeline 服务；brpc 会被拒绝。不写则取 dag.client_type。"
        ),
        "model_name": "使用 grpc 时，模型在 server_endpoints 上的名称；空：Op 的名称。",
        "server_api_key_file": (
            "存放 API 密钥的文件，密钥会出示给 server_endpoints（元数据 `authorization: Bearer KEY`，"
            "不加密）；被拒绝时重新读取。"
        ),
        "client_config": "接受但不使用：远程 KServe v2 服务自己会说明输入和输出。",
        "fetch_list": "要返回的输出的别名，或 pipeline_grpc 应答中的键；空：全部。",
        "use_encryption_model": "远程模型是加密的。",
        "encryption_key": "加密模型的密钥。",
    },
    "op.<name>.padding": {
        "feeds": "每个输入：轴与补齐值。",
        "fetches": "每个输出：要截回的轴。",
        "max_length": "补齐后的最大长度；更长的行只与形状相同的行合批。不写则只受模型自身的长度限制。",
    },
    "op.<name>.padding.feeds.<name>": {
        "axis": "可以补齐的轴；0 是批，不能补齐。",
        "value": "补齐处填的值。",
    },
    "op.<name>.padding.fetches.<name>": {
        "axis": "截回到该行自身长度的轴。",
    },
    "op.<name>.local_service_conf": {
        "client_type": "模型在本服务的工作进程里运行；写 brpc 或 grpc 也一样，不会为它启动服务器。",
        "model_config": (
            "serving 模型目录：包含 serving_server/ 的目录，或就是它本身；也可以是含有多个版本的目录，"
            "各版本是名为 1、2……的 serving 模型目录。"
        ),
        "model_version": "model_config 含有多个版本时，要服务的版本；不写：加载这个 Op 时最高的版本。",
        "engine": (
            "运行模型的引擎：paddle、onnxruntime、openvino、pytorch，或已安装的包增加的引擎；"
            "`auto`：本机能运行该模型的引擎中最快的一个；不写：按目录里的文件决定。"
        ),
        "allow_failed_parity": "即使旁边的 parity.json 说有比对没有通过，也提供这个模型。",
        "workdir": "接受但不使用，与原版的本地预测器相同。",
        "concurrency": "接受但不使用，与原版相同（原版的示例里有它）；起作用的是 Op 的 concurrency。",
        "thread_num": "一个预测器的 CPU 线程数；ONNX 模型的 Op，其各线程共用这些 CPU 线程。",
        "inference_mode": "以 inference mode 运行 PyTorch 模型；false：只是不计算梯度。",
        "lenient_feeds": "没有元素的输入、不是 UTF-8 的文本也交给 ONNX 模型，与 Triton 相同；false：拒绝。",
        "inter_op_thread_num": "模型有分支时，ONNX Runtime 同时运行的 ONNX 模型算子个数。",
        "mem_optim": "在算子之间复用内存。",
        "ir_optim": "运行引擎的图优化。",
        "device_type": (
            "-1 由 `devices` 决定，0 cpu，1 gpu，2 tensorRT，3 arm cpu，4 xpu，5 Ascend310，6 Ascend910。"
        ),
        "devices": '卡号，例如 "0,1"；各实例轮流使用。空：CPU。',
        "precision": (
            "预测器的运算精度；引擎在该设备上做不到时改用 fp32，并给出警告。"
            "`auto`：bf16 或模型的 int8 形式更快，且在至少 256 行真实数据（模型旁的 sample.npz）上与 fp32 "
            "答案一致时，也会选用。"
        ),
        "strict_precision": "`precision` 或 `use_calib` 不会起作用时，结束启动，而不是警告。",
        "use_calib": "在 TensorRT 中校准 int8。",
        "use_mkldnn": "在 CPU 上使用 oneDNN。不写：与 Paddle Serving 相同，关闭；`precision: bf16` 时开启。"
        "`engine: auto` 时：如果更快，并且在至少两种尺寸的真实数据"
        "（模型旁的 sample.npz）上答案一致，则开启。",
        "mkldnn_cache_capacity": "保留 oneDNN 原语的输入形状数；0：按 length_buckets 选择。",
        "mkldnn_op_list": "由 oneDNN 运行的算子；不写：它能运行的全部。",
        "mkldnn_bf16_op_list": "由 oneDNN 以 bf16 运行的算子。",
        "min_subgraph_size": "交给 TensorRT 的最小子图，以算子数计。",
        "fetch_list": "要返回的输出的别名；空：全部。",
        "tensorrt": "TensorRT 引擎：精度、缓存、形状。",
    },
    "op.<name>.local_service_conf.tensorrt": {
        "precision": "引擎的精度；不写：取 `precision`。",
        "cache_dir": "保存已构建引擎的目录；空：模型旁边。",
        "shapes": (
            "每个张量的最小、最优和最大形状，供没有 `set_dynamic_shape_info` 的 Op 使用；"
            "也可以是 `paddlewheel convert shapes` 所写文件的路径。ONNX 模型可以写多个这样的文件，"
            "每个对应一档长度：各构建一个引擎，由第一个范围容得下该批次的引擎运行。"
        ),
        "auto_collect": (
            "没有 shapes 时：启动时在 CPU 上运行模型找出形状，并保存在 `cache_dir`。用于 .pdmodel 程序。"
        ),
        "collect_lengths": "`auto_collect` 在每个可变的轴上运行的长度。",
        "collect_batches": "`auto_collect` 运行的行数；其中最大的也是预测批次的上限。",
    },
    "op.<name>.local_service_conf.tensorrt.shapes.<name>": {
        "min": "最小形状。",
        "opt": "TensorRT 据以优化的形状。",
        "max": "最大形状。",
    },
    "v2": {
        "http_port": "http_port 的全部内容在这里也提供（Triton：8000）。",
        "grpc_port": "rpc_port 的全部内容在这里也提供（Triton：8001）。",
        "metrics_port": "只提供 /metrics（Triton：8002）。",
        "metrics_address": "metrics_port 监听的地址；不写则与 http_port 相同。",
        "sagemaker_port": "Amazon SageMaker 的 /ping 与 /invocations（Triton：8080）。",
        "shared_memory": (
            "谁可以指定本机 /dev/shm 中的文件供读写：从本机连接的客户端（有代理代为连接时请关闭）、"
            "所有人，或没有人。"
        ),
        "model_control": "explicit：客户端可以加载和卸载模型；none：一律拒绝。",
    },
    "logging": {
        "level": "记录的最低级别；DEBUG 为每个请求写一行。",
        "format": "给人看的行、给程序读的行，或与 Triton 的 --log-format 相同的行。",
        "directory": "标准输出之外另写文件的目录，每个进程一个：NAME.front.log、NAME.OP.0.log；"
        "NAME.output.log 是它们打印的内容。",
        "rotation": "这些文件可以多大。",
    },
    "logging.rotation": {
        "max_bytes": "文件到这么多字节就移开；0：从不，被 logrotate 移走的文件会重新打开。",
        "backup_count": "保留多少个移开的文件。",
    },
    "tls": {
        "cert": "服务器证书的 PEM 文件，后面依次是通向其签发机构的证书。",
        "key": "私钥的 PEM 文件，不带口令。",
        "client_ca": "签发机构的 PEM 文件；客户端必须出示它们签发的证书，健康检查也不例外。",
        "http": "false：只有 gRPC 用 TLS，HTTP 仍为明文。",
    },
    "security": {
        "api_keys": "API 密钥文件，每行 NAME:KEY 或 NAME:sha256:DIGEST；不写：任何人都可以访问。",
        "key_pending": "同一名称的密钥未应答请求数的上限；0：与全体的上限相同。",
        "key_rate": "同一名称的密钥每秒请求数的上限；0：不限。",
        "open_health": "健康检查的页面和调用不需要密钥。",
        "open_metrics": "/metrics 不需要密钥。",
    },
    "limits": {
        "body_bytes": "一个 HTTP 请求体或 gRPC 消息的字节数。",
        "bodies_bytes": (
            "正在到达或尚未应答的全部 HTTP 请求体的字节数；HTTP 或 gRPC 上等待读取的全部应答的字节数；"
            "正在到达的全部 gRPC 消息的字节数。"
        ),
        "response_bytes": "一个应答的字节数。",
        "header_count": "一个 HTTP 请求的头的个数。",
        "header_bytes": "一个 HTTP 请求所有头的字节数。",
        "json_depth": "JSON 请求体的嵌套层数。",
        "tensors": "一个请求的张量数或键数。",
        "tensor_rank": "张量的维数。",
        "text_chars": "一个值的字符数：一段文本，或 base64 编码的图像。",
        "header_timeout_s": "发完请求头可用的秒数。",
        "body_timeout_s": "发完请求体、以及继续读取应答可用的秒数。",
        "idle_timeout_s": "没有请求的连接可以保持的秒数。",
        "rows": "一个请求中的行数（实例数）。",
        "kserve_rows": "Op 没有声明上限时，一个 KServe 请求的最大行数；即元数据中的 `max_batch_size`。",
        "metrics_interval_s": "两次生成 /metrics 或 /overview.json 至少间隔的秒数；其间的请求等待。",
        "max_connections": "每个端口打开的连接数。",
        "connection_calls": "一个 gRPC 连接上同时进行的调用数；更多的由客户端等待。",
        "sequences": "一个 Op 的活动序列数上限；超出时以 429 拒绝。",
        "sequence_bytes": "前端为一个 Op 的所有序列保存的状态的总字节数上限。",
        "sequence_idle_s": "序列在没有请求多少秒后结束；config.pbtxt 有自己的 "
        "`max_sequence_idle_microseconds`。",
        "max_memory": "一个 Op 的工作进程的总内存，单位 MB（10^6 字节）；`auto` 不选超过它的设置，"
        "`shards` 相应减少。",
    },
    "inputs.<name>, kind: image": {
        "feed": "模型输入的别名；不写：唯一的那个。",
        "preset": (
            "下面没有写的键取什么值：torchvision、PaddleClas 或 timm 评估时的变换；"
            "plain：缩放到输入的边长，值为 0 到 1。"
        ),
        "resize": "短边，或 [高, 宽]；不写：由 preset 和 crop 决定。",
        "crop": "取中间的 [高, 宽]；不写：由 preset 和输入的边长决定。",
        "resampling": "缩放时怎样得到像素；不写：由 preset 决定。",
        "library": "按哪个库的算法缩放：pillow 缩小时取平均，opencv（bilinear）不取；不写：由 preset 决定。",
        "channels": "颜色的顺序；不写：rgb，输入只有一个通道时为 grey。",
        "layout": "通道在像素之前还是之后；不写：按输入的形状。",
        "divisor": "0 到 255 的每个值除以它；整数输入不除。",
        "mean": "然后按通道减去。",
        "std": "然后按通道除以。",
        "orientation": "exif：按相机记录的方向转正；stored：保持像素存储的方向。",
        "max_pixels": "可以解码的最大图像的宽乘高。",
    },
    "inputs.<name>, kind: text": {
        "feed": "字符串输入的别名；不写：文本先分词。",
        "pair": "文本对中第二条文本的名字；不写：单条文本。",
        "tokenizer": (
            "模型旁边的文件；不写：tokenizer.json、vocab.txt（WordPiece）、"
            "sentencepiece.bpe.model（XLM-R）或 spiece.model（ALBERT）。"
        ),
        "lowercase": "只用于 vocab.txt 和 spiece.model；不写：按 tokenizer_config.json，没有则为 true。",
        "ids": "词编号输入的别名。",
        "types": "分段输入的别名（如果有）。",
        "mask": "掩码输入的别名（如果有）。",
        "max_tokens": "一条文本的最多词数；不写：按 max_lengths，没有则为 512。",
        "too_long": "词数更多的文本怎么办：拒绝，截断，或分成重叠的窗口来读（windows）。",
        "stride": "从一个窗口的开头到下一个窗口开头的词数；不写：窗口的四分之三。",
        "max_windows": "一条文本的最多窗口数；更长的文本被拒绝。",
    },
    "inputs.<name>, kind: table": {
        "feed": "接收各列的输入的别名；不写：唯一的那个。",
        "columns": "各列，顺序与输入一致。",
    },
    "inputs.<name>.columns": {
        "name": "客户端发送时所用的名字。",
        "type": "单元格的内容：数、整数或文本。",
        "feed": "这一列单独的输入的别名；不写：表格的输入。",
        "missing": "数值缺失（null 或空单元格）时：视为错误，或当作 NaN。",
        "values": "模型认识的文本，其他文本会被拒绝；不写则不限。",
        "example": "/docs 的示例所用的单元格，写法与 CSV 相同。",
    },
    "outputs.<fetch>, kind: classes": {
        "activation": "怎样变成概率；auto：softmax，除非一行的和已经是 1。",
        "chosen": "另一个输出的别名，它给出模型所选类别的名字或编号。",
        "top_k": "大于 1 时：另给出这么多个标签及分数，从高到低。",
        "threshold": "用于文本：给出的标签的最低分数；请求可以另说。",
        "pooling": "长文本各窗口的分数怎样合成整条文本的分数。",
        "labels": "类别的名字；不写：模型的标签。",
        "raw": "是否也返回原来的输出。",
    },
    "outputs.<fetch>, kind: multilabel": {
        "activation": "怎样变成概率。",
        "threshold": "标签成立的最低分数。",
        "top_k": "用于文本：最多给出多少个标签；不写：不限。",
        "pooling": "长文本各窗口的分数怎样合成整条文本的分数。",
        "labels": "类别的名字；不写：模型的标签。",
        "raw": "是否也返回原来的输出。",
    },
    "outputs.<fetch>, kind: tokens": {
        "labels": "类别的名字；不写：模型的标签。",
        "raw": "是否也返回原来的输出。",
    },
    "outputs.<fetch>, kind: entities": {
        "scheme": (
            "标签怎样说明词在实体中的位置；auto：按标签的名字（B-PER、PER-B）；none：相邻且标签相同的词是一个实体。"
        ),
        "outside": "不属于任何实体的词的标签。",
        "threshold": "实体的最低分数；请求可以另说。",
        "labels": "类别的名字；不写：模型的标签。",
    },
    "outputs.<fetch>, kind: zero-shot": {
        "entailment": "表示蕴含的类别的编号；不写：按模型标签的名字。",
        "candidates": "请求没有自带标签时，从这些标签中选。",
        "template": "假设句，{} 处放标签；请求可以另说。",
        "multi_label": "是否逐个判断每个标签；否则全部标签的分数之和为 1。",
        "top_k": "最多给出多少个标签；不写：全部。",
        "threshold": "给出的标签的最低分数。",
        "pooling": "长文本各窗口的分数怎样合成整条文本的分数。",
        "labels": "类别的名字；不写：模型的标签。",
    },
    "outputs.<fetch>, kind: embedding": {
        "pooling": "怎样由各 token 的向量得到一个向量：取平均（mean）、第一个（cls）、最后一个（lasttoken）、"
        "各分量的最大值（max）、总和除以个数的平方根（mean_sqrt_len），"
        "或以 1、2、3……为权重取平均（weightedmean）；"
        "auto：按 serving.yml 的 `sentence` 或模型旁边的 1_Pooling/config.json，没有则为 mean；"
        "none：输出本来就是每段文本一个向量。",
        "normalize": "向量长度是否为 1；请求可以另说。",
        "dimensions": "保留向量的前多少个数，用于按此方式训练的模型；请求可以另说；不写：全部。",
    },
    "outputs.<fetch>, kind: similarity": {
        "pooling": "怎样由各 token 的向量得到一个向量：取平均（mean）、第一个（cls）、最后一个（lasttoken）、"
        "各分量的最大值（max）、总和除以个数的平方根（mean_sqrt_len），"
        "或以 1、2、3……为权重取平均（weightedmean）；"
        "auto：按 serving.yml 的 `sentence` 或模型旁边的 1_Pooling/config.json，没有则为 mean；"
        "none：输出本来就是每段文本一个向量。",
        "normalize": "向量长度是否为 1；请求可以另说。",
        "dimensions": "保留向量的前多少个数，用于按此方式训练的模型；请求可以另说；不写：全部。",
    },
    "outputs.<fetch>, kind: relevance": {
        "activation": "怎样由输出得到 0 到 1 的分数；auto：一个类别用 sigmoid，两个类别用 softmax，"
        "其中后一个表示相关。",
    },
    "outputs.<fetch>, kind: label": {
        "labels": "以编号（从 0 起）表示的类别的名字；不写：模型的标签（如果有）。",
    },
}

CHINESE = Words(
    head=_HEAD,
    serving_yml=_SERVING_YML,
    top_level="顶层",
    columns=("键", "类型", "默认值", "含义"),
    kinds={"string": "文本", "integer": "整数", "number": "数", "boolean": "true、false"},
    section="配置段",
    list_of="{}的列表",
    from_to="{1} 到 {2} 的{0}",
    required="必填",
    comma="、",
    meanings=_MEANINGS,
)
