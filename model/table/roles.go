package table

// Role is what a weight is in its module, spelled as HuggingFace does. A module of a layer
// has at most one weight of a role; of the routed experts, each has one.
type Role string

// The roles of all families.
const (
	EmbedTokens Role = "embed_tokens"
	LMHead      Role = "lm_head"
	normRole    Role = "norm"

	InputLayernorm         Role = "input_layernorm"
	PostAttentionLayernorm Role = "post_attention_layernorm"
	PostMLPLayernorm       Role = "post_mlp_layernorm"
	attentionLayernorm     Role = "attention_layernorm" // behind attention

	QProj       Role = "q_proj"
	qProjBias   Role = "q_proj.bias"
	KProj       Role = "k_proj"
	kProjBias   Role = "k_proj.bias"
	VProj       Role = "v_proj"
	vProjBias   Role = "v_proj.bias"
	qkvProjBias Role = "qkv_proj.bias"
	QKVProj     Role = "qkv_proj"
	OProj       Role = "o_proj"
	oProjBias   Role = "o_proj.bias"

	QNorm Role = "q_norm"

	QAProj             Role = "q_a_proj"
	qaProjBias         Role = "q_a_proj.bias"
	QALayernorm        Role = "q_a_layernorm"
	QBProj             Role = "q_b_proj"
	KVAProjWithMQA     Role = "kv_a_proj_with_mqa"
	kvaProjWithMQABias Role = "kv_a_proj_with_mqa.bias"
	KVALayernorm       Role = "kv_a_layernorm"
	KVBProj            Role = "kv_b_proj"

	WQB         Role = "wq_b"
	WK          Role = "wk"
	KNorm       Role = "k_norm"
	KNormBias   Role = "k_norm.bias"
	WeightsProj Role = "weights_proj"

	QANorm       Role = "q_a_norm"
	KVProj       Role = "kv_proj"
	KVNorm       Role = "kv_norm"
	OAProj       Role = "o_a_proj"
	OBProj       Role = "o_b_proj"
	Sinks        Role = "sinks"
	PositionBias Role = "position_bias"

	HCFn    Role = "fn"
	HCBase  Role = "base"
	HCScale Role = "scale"

	GateProj Role = "gate_proj"
	UpProj   Role = "up_proj"
	DownProj Role = "down_proj"

	Gate                 Role = "gate"
	EScoreCorrectionBias Role = "e_score_correction_bias"
	SharedExpertGate     Role = "shared_expert_gate" // of the shared expert's output
	TID2EID              Role = "tid2eid"            // experts by token id, integers

	FC1LatentProj Role = "fc1_latent_proj"
	FC2LatentProj Role = "fc2_latent_proj"

	ENorm          Role = "enorm"
	HNorm          Role = "hnorm"
	EHProj         Role = "eh_proj"
	eProj          Role = "e_proj"
	hProj          Role = "h_proj"
	SharedHeadNorm Role = "shared_head.norm"
	SharedHeadHead Role = "shared_head.head"
)

// CountsExperts reports whether row e of the weight belongs to routed expert e of its layer: where the expert is
// dropped, so is the row.
func (r Role) CountsExperts() bool { return r == Gate || r == EScoreCorrectionBias }
