package config

// axk1Defaults are the defaults of transformers' AXK1Config, A.X-K1's.
var axk1Defaults = axk1(v3Defaults)

func axk1(c Config) Config {
	c.ModelType, c.VocabSize, c.NRoutedExperts, c.FirstKDenseReplace = "axk1", 163840, 192, 1
	c.NumAttentionHeads, c.NumKeyValueHeads, c.MaxPositionEmbeddings = 64, 64, 32768
	c.NumNextNPredictLayers = 0
	return c
}

// axk1Fields are DeepSeek-V3's, but mlp_layer_types, where it is set, says which layers are dense. The class has no
// prediction layers, and auto_map is ignored: transformers' class is the only reference.
var axk1Fields = replaced(layerTypesDecide(v3Fields), map[string]reader{
	"first_k_dense_replace":    {read: readDenseWithoutTypes, value: func(c *Config) any { return c.FirstKDenseReplace }},
	"num_nextn_predict_layers": natural(func(c *Config) *int { return &c.NumNextNPredictLayers }, 0),
})

var axk1Rules = append([]rule{{[]string{"q_lora_rank"}, queriesAreCompressed}}, v3Rules...)

// axk1References: Transformers' DeepseekV3ForCausalLM with a norm behind the experts, and no router bias in the files.
var axk1References = map[Reference]Rules{Native: normedExperts(v3References[Native])}

func normedExperts(r Rules) Rules {
	r.NormsExperts, r.UnbiasedChoice = true, true
	return r
}
