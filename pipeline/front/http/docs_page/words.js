"use strict";

// Every word that people read here, in both languages.
const WORDS = {
  en: {
    other: "中文", choose: "Model", service: "the whole service", alone: "Op {0} by itself",
    task: "Task", labels: "Labels", version: "Version", engine: "Engine", state: "State", reason: "Why not", repository: "Models of the repository",
    more: "{0} more", ready: "ready", starting: "not ready", instances: "{0}, {1} of {2} instances",
    tasks: {
      "sequence-classification": "text classification", "token-classification": "labels for tokens",
      text: "text classification", image: "image classification", table: "classification of table rows",
      tensor: "classification", tokens: "labels for tokens", multilabel: "any number of labels",
      entities: "entities in texts", "zero-shot": "labels of the caller's own",
    },
    views: { "#try": "Try it", "#live": "Live" },
    live: {
      heading: "At work", pause: "Pause", resume: "Go on", op: "Op", picture_of: "Graph of {0}", other_ops: "Other Ops",
      rate: "Requests/s", pending: "Pending", front_memory: "Memory of the front", no_figures: "not listed",
      slowest: "Slowest Op: {0}, {1} a request", slowest_mark: "slowest", no_requests: "No request yet",
      latest_error: "Latest error: {0} ({1} in all)", no_errors: "No request has failed.",
      box_rate: "{0} requests/s, {1} errors", box_times: "run p50 {0}, p99 {1}", box_queue: "queue {0}, p99 {1}, batch {2}",
      box_instances: "{0} of {1} instances, {2}",
      mean_time: "Mean time of a request in the last half minute: {0}", mean_time_ever: "Mean time of a request since the start: {0}",
      stages: { queue: "queue", preprocess: "preprocess", run: "run", postprocess: "postprocess" },
      run_times: "Run p50 / p99", queue_times: "Queue p50 / p99", waiting: "In the queue", batch: "Mean batch", memory: "Memory",
      restarts: "Restarts", retried: "Retried", failed: "Errors", failed_in: "{0} in the last half minute, {1} in all",
      errors: "Recent errors", models: "Models and versions", times: "{0} times, last at {1}", raised: "Raised at", message: "Message",
      meaning: "Meaning", answered: "Answered", endpoint: "Endpoint", requests: "Requests", count: "Count", outcomes: "All errors by number",
      request: "request {0}, {1}", request_with_id: "request {0}, {1}, client's id {2}", unread: "overview.json can't be read: ",
      clients_mistake: "The client's mistake: the answer says what to send instead.",
      servers_mistake: "A fault of the service: the log has the reason under the request's number.",
      meanings: {
        HookFailed: "The Op's own code raised an exception. The log has its traceback under the request's number.",
        WrongResult: "A method of the Op returned a value of another type.",
        FeedsRefused: "The engine refused the inputs of the model.",
        MissingKey: "The request lacks a key that the Op reads.", MissingFeed: "The request lacks an input of the model.",
        UnusableFeed: "An input has a type, shape or value that the model can't take.",
        DeadlineExceeded: "The answer came too late. Look for the slowest Op and for long queues.",
        Overloaded: "A queue is full. Look for the slowest Op, and add instances to it.",
        NotReady: "The service starts, stops, or has no running worker for this Op.",
        PoisonRequest: "The request killed two workers while each ran only this request.",
        WorkerLost: "The worker died, and the Op does not allow retries.",
        RemoteUnreachable: "No endpoint of the remote model service answers.",
        ProductError: "The app's own code refused the request.",
      },
      numbers: {
        3001: "overloaded or not ready", 3002: "no such model or version", 3004: "no valid API key", 5000: "invalid input",
        6000: "deadline exceeded", 7000: "a type that can't be sent", 8000: "invalid message", 9000: "a model or worker failed",
        10000: "code of an Op failed, or an unusable input",
      },
    },
    attempt: "Try it", examples: "Examples", row: "a row, as JSON", rows: "or rows of a CSV file", columns: "first line: the columns", send: "Send", sending: "Sending…", reset: "Back to the example", again: "Ctrl+Enter sends",
    answer: "Answer", answered: "{0} in {1} ms", empty: "(empty)", failed: "Not answered: ",
    scores: "The best of {0} scores", of_row: "Row {0}", none: "No label is meant.",
    pick: "Pick an image, drop it here or paste it.", sample: "an example, {0} x {1} pixels",
    picked: "{0}, {1} x {2} pixels", unseen: "{0}: this browser can't show it; it is sent all the same",
    mistakes: {
      number: "write a number", integer: "write a whole number", json: "no JSON: {0}", file: "pick an image", any_file: "pick a file",
      row: 'write an object: {"name": value}',
    },
    unknown_inputs: "No example is known for this model: its Op can declare it as example or example_key_values.",
    unasked: "This model can't be tried here; the ways to ask it are below.",
    copy: "Copy", copied: "Copied", uncopied: "Press Ctrl+C",
    endpoints: "Ways to ask it", body: "Body (JSON)",
    tags: {
      "key/value": "Key/value", v1: "KServe v1", v2: "KServe v2", grpc: "gRPC", health: "Health and figures",
    },
    rpc: {
      v2: "KServe v2, as Triton's clients ask (pip install tritonclient[grpc])",
      "key/value": "Key/value, with this project's client",
    },
    similarity: "Similarity of two texts", text_number: "text {0}", similarity_examples: ["A cat sleeps.", "A kitten naps."],
    key: "API key", use: "Use", unkeyed: "The service asks for an API key.",
    unknown: "The service does not know this API key.", unread: "openapi.json can't be read: ",
  },
  zh: {
    other: "English", choose: "模型", service: "整个服务", alone: "单独的 Op {0}",
    task: "任务", labels: "标签", version: "版本", engine: "引擎", state: "状态", reason: "原因", repository: "仓库中的模型",
    more: "其余 {0} 个", ready: "就绪", starting: "未就绪", instances: "{0}（{1}/{2} 个实例）",
    tasks: {
      "sequence-classification": "文本分类", "token-classification": "词元标注",
      text: "文本分类", image: "图像分类", table: "表格行分类",
      tensor: "分类", tokens: "词元标注", multilabel: "多标签分类",
      entities: "文本中的实体", "zero-shot": "调用方自己的标签",
    },
    views: { "#try": "试用", "#live": "运行状态" },
    live: {
      heading: "运行状态", pause: "暂停", resume: "继续", op: "Op", picture_of: "{0} 的流程图", other_ops: "其他 Op",
      rate: "请求/秒", pending: "处理中", front_memory: "前端内存", no_figures: "未列出",
      slowest: "最慢的 Op：{0}，每个请求 {1}", slowest_mark: "最慢", no_requests: "还没有请求",
      latest_error: "最近的错误：{0}（共 {1} 次）", no_errors: "没有失败的请求。",
      box_rate: "{0} 请求/秒，{1} 个错误", box_times: "推理 p50 {0}，p99 {1}", box_queue: "队列 {0}，p99 {1}，批 {2}",
      box_instances: "{0}/{1} 个实例，{2}",
      mean_time: "最近半分钟内每个请求的平均耗时：{0}", mean_time_ever: "启动以来每个请求的平均耗时：{0}",
      stages: { queue: "排队", preprocess: "预处理", run: "推理", postprocess: "后处理" },
      run_times: "推理 p50 / p99", queue_times: "排队 p50 / p99", waiting: "队列中", batch: "平均批大小", memory: "内存",
      restarts: "重启", retried: "重试", failed: "错误", failed_in: "最近半分钟 {0} 次，共 {1} 次",
      errors: "最近的错误", models: "模型与版本", times: "{0} 次，最近 {1}", raised: "抛出位置", message: "消息",
      meaning: "含义", answered: "应答", endpoint: "接口", requests: "请求", count: "次数", outcomes: "按错误号统计",
      request: "请求 {0}，{1}", request_with_id: "请求 {0}，{1}，客户端编号 {2}", unread: "无法读取 overview.json：",
      clients_mistake: "调用方的错误：应答说明了应该发送什么。",
      servers_mistake: "服务的故障：日志中该请求编号处有原因。",
      meanings: {
        HookFailed: "Op 自己的代码抛出了异常。日志中该请求编号处有完整的调用栈。",
        WrongResult: "Op 的方法返回了其他类型的值。",
        FeedsRefused: "推理引擎拒绝了模型的输入。",
        MissingKey: "请求缺少 Op 要读取的键。", MissingFeed: "请求缺少模型的一个输入。",
        UnusableFeed: "某个输入的类型、形状或取值不能用于该模型。",
        DeadlineExceeded: "应答超过了截止时间。请查看最慢的 Op 和较长的队列。",
        Overloaded: "队列已满。请查看最慢的 Op，并增加它的实例。",
        NotReady: "服务正在启动或停止，或者该 Op 没有可用的 worker。",
        PoisonRequest: "这个请求单独运行时使两个 worker 崩溃。",
        WorkerLost: "worker 崩溃，而该 Op 不允许重试。",
        RemoteUnreachable: "远程模型服务的所有地址都没有应答。",
        ProductError: "应用自己的代码拒绝了请求。",
      },
      numbers: {
        3001: "过载或未就绪", 3002: "没有这个模型或版本", 3004: "没有有效的 API 密钥", 5000: "输入无效",
        6000: "超过截止时间", 7000: "类型无法发送", 8000: "消息无效", 9000: "模型或 worker 失败",
        10000: "Op 的代码失败，或输入不可用",
      },
    },
    attempt: "试一试", examples: "示例", row: "一行数据（JSON）", rows: "或 CSV 文件中的多行", columns: "首行为列名", send: "发送", sending: "发送中…", reset: "恢复示例", again: "按 Ctrl+Enter 发送",
    answer: "应答", answered: "{0}，{1} 毫秒", empty: "（空）", failed: "没有得到应答：",
    scores: "{0} 个得分中最高的", of_row: "第 {0} 行", none: "没有任何标签。",
    pick: "选择一张图片，或拖放、粘贴到这里。", sample: "示例，{0} x {1} 像素",
    picked: "{0}，{1} x {2} 像素", unseen: "{0}：浏览器无法显示，但仍会发送",
    mistakes: {
      number: "请写一个数", integer: "请写一个整数", json: "不是 JSON：{0}", file: "请选择一张图片", any_file: "请选择一个文件",
      row: '请写一个对象：{"名称": 值}',
    },
    unknown_inputs: "没有这个模型的示例：可以在 Op 中用 example 或 example_key_values 声明。",
    unasked: "这个模型不能在这里试用；调用方式见下文。",
    copy: "复制", copied: "已复制", uncopied: "请按 Ctrl+C",
    endpoints: "调用方式", body: "请求体（JSON）",
    tags: { "key/value": "键值接口", v1: "KServe v1", v2: "KServe v2", grpc: "gRPC", health: "健康检查与指标" },
    rpc: {
      v2: "KServe v2，与 Triton 的客户端相同（pip install tritonclient[grpc]）",
      "key/value": "键值接口，使用本项目的客户端",
    },
    similarity: "两段文本的相似度", text_number: "文本 {0}", similarity_examples: ["猫在睡觉。", "小猫打盹。"],
    key: "API 密钥", use: "使用", unkeyed: "本服务需要 API 密钥。", unknown: "本服务不认识这个 API 密钥。",
    unread: "无法读取 openapi.json：",
  },
};

let language = "en";
let words = WORDS.en;

function speak(chosen) {
  language = Object.hasOwn(WORDS, chosen) ? chosen : "en";
  words = WORDS[language];
}

function filled(text, ...given) {
  return text.replace(/\{(\d)\}/g, (_, at) => given[at]);
}
