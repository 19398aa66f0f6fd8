"""Names of secrets, and formats that are recognized without a name."""

import re

# a name that ends in one of these: db_password, HF_TOKEN, clientSecret, x-api-key, ConnectionString
_SECRET = (
    r"token|secret|password|passwd|passphrase|passcode|pwd|credential|creds?|authorization|bearer|jwt|api_?key"
    r"|(csrf|xsrf|auth|access|refresh|api|bot)token|[a-z]{1,12}(password|passwd)|j?sess(ion)?_?id"
    r"|conn(ection)?[_-]?str(ing)?"
    r"|(api|access|account|secret|private|ssh|signing|encryption|master|auth|license|subscription|session|webhook"
    r"|consumer|shared|storage|admin|deploy|service|app|application|bot)[_-]?key"
)
_PROVIDERS = (  # `_key` alone is no sign of a secret, as in sort_key and cache_key
    r"open[_-]?ai|azure|anthropic|claude|gemini|google|gcp|vertex|aws|amazon|bedrock|cohere|mistral|groq|grok|xai"
    r"|together(ai)?|fireworks|replicate|perplexity|pplx|deep[_-]?seek|deepinfra|open[_-]?router|anyscale|cerebras"
    r"|sambanova|nvidia|ngc|nim|nebius|hyperbolic|novita|hugging[_-]?face|hf|voyage|jina|wandb|comet|neptune|clearml"
    r"|mlflow|langsmith|langchain|langfuse|helicone|braintrust|pinecone|weaviate|qdrant|milvus|elastic(search)?"
    r"|algolia|serper|serp[_-]?api|tavily|exa|brave|bing|firecrawl|github|gh|gitlab|bitbucket|slack|discord|telegram"
    r"|twilio|sendgrid|mailgun|mailchimp|postmark|resend|stripe|paypal|datadog|dd|sentry|new[_-]?relic|grafana"
    r"|honeycomb|pagerduty|opsgenie|posthog|mixpanel|cloudflare|cf|fastly|heroku|vercel|netlify|supabase|firebase"
    r"|digital[_-]?ocean|linode|vultr|hetzner|lambda(labs)?|runpod|vast(ai)?|coreweave|paperspace|scaleway|oci|ibm"
    r"|watson|alibaba|dashscope|qwen|moonshot|kimi|zhipu|minimax|snowflake|databricks|s3|minio|r2|b2|backblaze|wasabi"
    r"|gcs|redis|mongo(db)?|postgres|mysql|rabbitmq|hmac|cookie|csrf|django|flask|rails|rsa|ecdsa|ed25519|tls|ssl|pgp"
    r"|gpg|llm|judge"
)
_NAME = re.compile(
    rf"(^|[_\-.])(({_SECRET}|({_PROVIDERS})[_-]key)s?([_-](value|pem|b64|base64|header|base|old|new|prod|dev|test|staging|live|primary|secondary))?"
    r"|(password|passwd|pwd|secret|api[_-]?key)[_-]?\d{1,2})$",
    re.IGNORECASE,
)
# these are words of statistics and prose too: with a number, they name no secret
_SHORT = r"(pass|auth|sas|pat|dsn|cookies?|webhook([_-]url)?)$"
_SHORT_NAME = re.compile(rf"(^|[_\-.]){_SHORT}", re.IGNORECASE)
_SHORT_WORD = re.compile(rf"(^|\.){_SHORT}", re.IGNORECASE)  # also of a metric: sums.pass
_NO_NAME = re.compile(
    # tokens of texts
    r"((eos|bos|pad|unk|sep|cls|mask|special|stop|image|end|start|additional_special)_tokens?"
    r"|(forward|backward|first|second|third|last|next|single|one|two|multi|by|all|low|high|band|num|n)[_-]pass"
    # keys of tables and mappings: CACHE_KEY
    r"|(?i:(sort|map|primary|foreign|cache|partition|group|index|hash|lookup|unique|join|public|row|column)_key))$"
)
_VARIABLE = re.compile(r"[A-Z0-9_]+_(KEY|PASS|PAT|AUTH|DSN|PW|SAS)")  # upper case only: `sort_key` is no secret
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

# words that follow a name in prose or in statistics, and are no secrets
NO_SECRETS = re.compile(
    r"bearer|basic|digest|none|null|true|false|yes|no|not|ok|on|off|is|are|was|were|must|cannot|can|has|have|had"
    r"|missing|unset|set|empty|required|optional|invalid|unknown|expired|wrong|incorrect|rejected|refused|denied"
    r"|the|an?|and|or|of|for|in|from|to|with|without|by|as|if|when|given",
    re.IGNORECASE,
)
NUMBER = re.compile(r"[+\-−±]?\d[\d.,_±]*(e[+-]?\d+)?\s?(%|[a-zA-Z]{1,2}|it/s|tok/s)?[.:]?", re.IGNORECASE)
# the name of a secret's variable, or a placeholder for its value: HF_TOKEN, [NAME], <token>, …
PLACEHOLDER = re.compile(
    r"\[?([A-Z][A-Z0-9]*(_[A-Z0-9]+)+|[A-Z]{0,12}(KEY|TOKEN|PASSWORD|SECRET|NAME|VALUE)|X+|x{3,})\]?[:.,`]*|<[\w \-]+>"
)
A_FILE = re.compile(
    r"(~|\.{0,2})/[\w./\-]+\.\w{1,5}|(~|\.{0,2})/[\w./\-]*(key|credentials)[\w.\-]*"
    r"|(~|\.{1,2}|/(home|Users|root|etc|run|var|mnt|opt|usr|tmp|srv|work|workspace|secrets)(?=/|$))[\w./\-]*"
    r"|([\w\-]{1,40}/){1,10}[\w\-]{1,40}\.[a-z]{1,8}"
)
_FILE_SECRETS = re.compile(r"(credentials?|keys?|cookies|pwd)$", re.IGNORECASE)

# a long random part, which a name such as fw_compile_the_model does not have
_RANDOM = r"(?=[\w\-]*?[A-Za-z0-9]{16})(?=[\w\-]*?\d)"
SHAPES = re.compile(
    # addresses that are secrets by themselves
    r"(?P<name>https?://(?:hooks\.slack\.com/(?:services|workflows|triggers)/"
    r"|(?:\w{1,20}\.)?discord(?:app)?\.com/api/(?:v\d+/)?webhooks/"
    r"|[\w.\-]{1,80}\.webhook\.office\.com/webhookb2/|hooks\.zapier\.com/hooks/catch/|api\.telegram\.org/bot"
    r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook/|hc-ping\.com/"
    r"|[\w.\-:]{1,80}/hooks/(?=[a-z0-9]{26}\b)|maker\.ifttt\.com/trigger/))[^\s'\"<>)]+"
    # tokens with the prefix of a provider
    r"|(?:\b|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))(?:hf_[A-Za-z0-9]{20,}|api_org_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|gl(?:pat|ptt|dt|rt|cbt|ft|soat|imt|agent|oas|ffct)-[\w\-]{20,}|sk-(?=[\w\-]*?[A-Za-z0-9]{16})[\w\-]{20,}|dapi[0-9a-f]{32}"
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}|AIza[\w\-]{35}|GOCSPX-[\w\-]{20,}|ya29\.[\w\-]{20,}|1//0[\w\-]{30,}"
    r"|xox[abeoprs](?:\.xox[bp])?-[\w\-]{10,}|xapp-[\w\-]{10,}|nvapi-[\w\-]{20,}|[rsp]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|whsec_[A-Za-z0-9+/=]{16,}|npm_[A-Za-z0-9]{36}|pypi-[\w\-]{50,}|SG\.[\w\-]{16,}\.[\w\-]{16,}"
    r"|(?:gsk|r8|tgp_v1|tgp|fw|csk|pcsk|tvly|jina|lin_api|figd|ntn|rnd|wandb_v1|ph[cx]|glc|glsa|sntry[su]|CCIPAT|bkua"
    r"|shp(?:at|ca|pa|ss)|do[opr]_v1|dckr_pat|lsv2_(?:pt|sk))[_-]"
    + _RANDOM
    + r"[\w\-]{20,}|(?:pplx|xai|pul|NRAK|PMAK|tfp|[sp]k-lf|sq0(?:atp|csp)|AGE-SECRET-KEY)-"
    + _RANDOM
    + r"[\w\-]{20,}|[MNO][\w\-]{23,27}\.[\w\-]{6}\.[\w\-]{27,40}"  # the last: Discord's bots
    r"|hv[bs]\.[\w\-]{20,}|dp\.pt\.\w{20,}|[A-Za-z0-9]{14}\.atlasv1\.[\w\-=]{40,}|A[TC][AC]TT3x[\w\-=]{20,}"
    r"|pat[A-Za-z0-9]{14}\.[0-9a-f]{64}|\d{8,10}:AA[\w\-]{33}"
    r"|eyJ[\w\-]{10,}\.[\w\-]{10,}\.[\w\-]+(?:\.[\w\-]+)*)"
)


def is_secret(name: str) -> bool:
    """Return whether a field, an option or a variable of this name holds a secret, unless its value is a number."""
    name = name.lstrip("-")
    if _NO_NAME.search(name):
        return False
    words = _CAMEL_CASE.sub("_", name)
    return bool(_VARIABLE.fullmatch(name) or _NAME.search(words) or _SHORT_NAME.search(words))


def is_path(name: str, value: str) -> bool:
    """Return whether the value of a name that files have too, such as `ssh_key` or `PWD`, is a path."""
    return bool(_FILE_SECRETS.search(name) and A_FILE.fullmatch(value))


def is_short(name: str) -> bool:
    """Return whether the name is a word of prose and statistics too, such as `pass`."""
    return bool(_SHORT_WORD.search(name))


def is_plain_value(name: str, value: str) -> bool:
    """Return whether the value of a short name is a number or a word: `auth: basic`, `webhook: failed`."""
    if not is_short(name):
        return False
    is_word = "webhook" in name.lower() and "/" not in value
    return is_word or bool(NO_SECRETS.fullmatch(value) or NUMBER.fullmatch(value))
