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
