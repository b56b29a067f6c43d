package count

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

func TestCountsOf16B(t *testing.T) {
	c := configtest.Fixture(t, "states/deepseek-moe-16b")
	const embed, expert = 102400 * 2048, 3 * 1408 * 2048
	assert.Equal(t, Totals{
		{table.Embedding, 1, embed, embed, 0},
		{table.Attention, 28 * 4, 469_762_048, 469_762_048, 469_762_048},
		{table.DenseMLP, 3, 67_239_936, 67_239_936, 67_239_936},
		{table.RoutedExperts, 27 * 64 * 3, 14_948_499_456, 27 * 6 * expert, 27 * 6 * expert},
		{table.Router, 27, 3_538_944, 3_538_944, 3_538_944},
		{table.SharedExperts, 27 * 3, 467_140_608, 467_140_608, 467_140_608},
		{table.Norms, 28*2 + 1, 116_736, 116_736, 0},
		{table.Head, 1, embed, embed, embed},
	}, Modules(c))

	all := Modules(c).Sum()
	assert.Equal(t, int64(16_375_728_128), all.Parameters)
	assert.EqualValues(t, 5466, all.Tensors)
	assert.Equal(t, int64(2_828_650_496), all.Activated)
	assert.Equal(t, int64(2_618_935_296), Modules(c).Sum(table.Embedding).Activated)
	assert.Equal(t, int64(2_409_220_096), Modules(c).Sum(table.Embedding, table.Head).Activated)
	assert.Equal(t, int64(2_618_818_560), all.MACs, "2.41e9 without the norms, and the head")
	assert.EqualValues(t, 939_524_096, 2*AttentionMACs(c, 4096))
	assert.EqualValues(t, 229_376, KVBytes(c))
	assert.Equal(t, "74974368", Combinations(c).String())
}

func TestCountsOfLatentModels(t *testing.T) {
	for name, want := range map[string]struct{ tensors, parameters, activated int64 }{
		"deepseek-v2-lite": {5291, 15_706_484_224, 2_661_150_208},
		"deepseek-v3":      {45_395, 671_026_419_200, 37_552_297_472},
		"deepseek-v32":     {45_700, 671_877_944_064, 38_403_822_336},
		"glm-5":            {59_079, 743_911_218_432, 41_784_728_832},

		"deepseek-v4-flash": {34_223, 284_332_240_471, 13_799_632_471},
		"deepseek-v4-pro":   {71_983, 1_572_997_201_763, 49_779_081_059},
	} {
		sum := Modules(configtest.Fixture(t, "states/"+name)).Sum()
		assert.Equal(t, want.tensors, sum.Tensors, name)
		assert.Equal(t, want.parameters, sum.Parameters, name)
		assert.Equal(t, want.activated, sum.Activated, name)
	}
}

// TestPublishedModels: the config.json of each published model counts to the parameters in billions that are
// published: without the embedding and the head of Moonlight, with the prediction layer of GLM-4.7-Flash. Of the
// 3,336,106,240 of DeepSeek-OCR's file 401,372,160 are of the towers beside the language model; those of
// DeepSeek-VL2, of 3, 16 and 27 billion, have .4 billion. GLM-4.5-Air, dots.llm1, Solar-Open and ERNIE-4.5 are published
// with fewer digits, cut and not rounded: 106, 142, 102 and 21; MiniMax-M2 as 230. Of these all, transformers' classes
// have the numbers of tensors, published ones, and of parameters that stand here. Two were not compared with them: GLM-4.7,
// published as 355, with the prediction layer and without embeddings and heads, and K-EXAONE, published as 236.
func TestPublishedModels(t *testing.T) {
	paths, err := filepath.Glob(configtest.Path(t, "configs/*.json"))
	require.NoError(t, err)
	published := map[string]struct {
		tensors, parameters int64
		billions            string
	}{
		"deepseek-moe-16b":       {5466, 16_375_728_128, "16.4"},
		"deepseek-v2":            {29_102, 235_741_434_880, "236"},
		"deepseek-v2.5":          {29_102, 235_741_434_880, "236"},
		"deepseek-v2-lite":       {5291, 15_706_484_224, "15.7"},
		"deepseek-coder-v2-lite": {5291, 15_706_484_224, "15.7"},
		"deepseek-v3":            {45_395, 671_026_419_200, "671"},
		"deepseek-v3.1":          {45_395, 671_026_419_200, "671"},
		"deepseek-r1":            {45_395, 671_026_419_200, "671"},
		"deepseek-r1-0528":       {45_395, 671_026_419_200, "671"},
		"moonlight-16b-a3b":      {5315, 15_289_021_568, "15.29"},
		"kimi-k2-instruct":       {69_975, 1_026_408_232_448, "1e+03"},
		"kimi-k2.5":              {69_975, 1_026_408_232_448, "1e+03"},
		"deepseek-ocr":           {2234, 3_336_106_240 - 401_372_160, "2.93473408"},
		"glm-4.7-flash":          {9703, 31_221_488_576, "31.221488576"},
		"deepseek-vl2-tiny":      {2234, 2_934_734_080, "2.9"},
		"deepseek-vl2-small":     {5291, 15_816_584_704, "16"},
		"deepseek-vl2":           {6625, 27_033_548_328, "27"},
		"glm-4.5-air":            {17_925, 106_852_251_264, "106.9"},
		"dots.llm1":              {24_231, 142_774_381_696, "142.8"},
		"solar-open-100b":        {18_963, 102_651_799_552, "102.7"},
		"hy3":                    {46_545, 295_033_543_488, "295"},
		"minimax-m2.5-bf16":      {48_239, 228_689_764_864, "228.7"},
		"ernie-4.5-21b-a3b":      {5492, 21_825_437_888, "21.8"},
		"glm-4.7":                {44_687, 355_234_006_336, "355"},
		"k-exaone-236b-a23b":     {18_673, 236_571_156_352, "236.6"},
	}
	assert.Len(t, paths, len(published))
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		c := configtest.Parse(t, configtest.Published(t, name, nil))
		sum := Modules(c).Sum()
		switch name {
		case "moonlight-16b-a3b":
			sum = Modules(c).Sum(table.Embedding, table.Head)
		case "glm-4.7-flash":
			mtp := MTP(c)
			sum.Tensors, sum.Parameters = sum.Tensors+mtp.Tensors, sum.Parameters+mtp.Parameters
		case "glm-4.7":
			mtp, copies := MTP(c), int64(2*c.VocabSize*c.HiddenSize)
			sum = Modules(c).Sum(table.Embedding, table.Head)
			sum.Tensors, sum.Parameters = sum.Tensors+mtp.Tensors-2, sum.Parameters+mtp.Parameters-copies
		}
		want := published[name]
		assert.Equal(t, want.tensors, sum.Tensors, name)
		assert.Equal(t, want.parameters, sum.Parameters, name)
		digits, _, _ := strings.Cut(strings.ReplaceAll(want.billions, ".", ""), "e")
		assert.Equal(t, want.billions, strconv.FormatFloat(float64(sum.Parameters)/1e9, 'g', len(digits), 64), name)
	}
}

// TestBytesOfV4: the config of DeepSeek-V4-Pro counts to the tensors and bytes that its index states, 2,343 of them of
// the prediction layer. Flash's are of the same table.
func TestBytesOfV4(t *testing.T) {
	for name, want := range map[string][3]int64{
		"deepseek-v4-pro":   {145_116, 864_704_792_696, 2_343},
		"deepseek-v4-flash": {69_187, 159_609_485_896, 1_575},
	} {
		c := configtest.Fixture(t, "states/"+name)
		var got [3]int64
		for module, info := range table.FamilyOf(c).Implied(c) {
			n, err := tensor.Size(info.DType, info.Shape)
			require.NoError(t, err)
			got[0], got[1] = got[0]+1, got[1]+n
			if module == table.MTP {
				got[2]++
			}
		}
		assert.Equal(t, want, got, name)
	}
}

// TestCacheOfV4: Flash has 43 windows of 128 tokens, 21 layers with an entry for 4 tokens and an indexer, 20 with one for
// 128; heads of 512, indexers' keys of 128. A token attends to the window, to 512 entries that an indexer chose among
// all, and to all entries of 128 tokens.
func TestCacheOfV4(t *testing.T) {
	c := configtest.Fixture(t, "states/deepseek-v4-flash")
	assert.Equal(t, Cache{43 * 128 * 512 * 2, (21*1024 + 20*32) * 512 * 2, 21 * 1024 * 128 * 2}, CacheOf(c, 4096))
	assert.Equal(t, Cache{43 * 100 * 512 * 2, 21 * 25 * 512 * 2, 21 * 25 * 128 * 2}, CacheOf(c, 100))
	assert.EqualValues(t, 2*(21*(512+128)/4+20*512/128), KVBytes(c))
	assert.EqualValues(t, (43*128+21*512+20*32)*64*1024+21*1024*64*129, AttentionMACs(c, 4096))
	assert.EqualValues(t, (43*100+21*25)*64*1024+21*25*64*129, AttentionMACs(c, 100))
}

// TestAXK1: AXK1Config's defaults are the published sizes, of 519 billion parameters, 33 of them activated.
func TestAXK1(t *testing.T) {
	sum := Modules(configtest.Parse(t, `{"model_type":"axk1"}`)).Sum()
	assert.Equal(t, []int64{35_415, 518_983_052_288, 32_779_332_608}, []int64{sum.Tensors, sum.Parameters, sum.Activated})
}

// TestGrouped: the defaults of the classes, and what their published models set beside, count to the parameters that
// these are published with, in billions.
func TestGrouped(t *testing.T) {
	for keys, want := range map[string][2]int64{ // parameters, activated ones
		`"glm4_moe","head_dim":128,"attention_bias":true`: {106_852_251_264, 13_424_129_664}, // GLM-4.5-Air, 106B A12B and embeddings
		`"glm4_moe","head_dim":128,"attention_bias":true,"use_qk_norm":true,"hidden_size":5120,"num_hidden_layers":92,` +
			`"intermediate_size":12288,"moe_intermediate_size":1536,"n_routed_experts":160,"first_k_dense_replace":3`: {
			352_797_829_024, 33_632_266_144}, // GLM-4.5, 355B A32B; with the prediction layer 358B
		`"dots1","hidden_size":4096,"n_routed_experts":128,"n_shared_experts":2,"num_experts_per_tok":6,` +
			`"first_k_dense_replace":1,"sliding_window":null`: {142_774_381_696, 14_016_588_928}, // dots.llm1, 142B A14B
		`"solar_open"`:   {102_651_799_552, 12_054_833_152}, // Solar-Open, 102B A12B
		`"hy_v3"`:        {295_033_543_488, 20_675_730_240}, // Hy3, 295B A21B
		`"minimax_m2"`:   {228_689_764_864, 11_030_553_088}, // MiniMax-M2, 229B A10B
		`"ernie4_5_moe"`: {21_825_437_888, 3_352_150_208},   // ERNIE-4.5, 21B A3B
		`"bailing_moe","architectures":["BailingMoeV2ForCausalLM"]`: {16_255_643_392, 1_432_973_056}, // Ling-mini-2.0, 16B A1.4B
		`"sarvam_moe"`: {32_152_650_368, 4_520_575_616},   // Sarvam-30B, 32B A2.4B and embeddings
		`"sarvam_mla"`: {106_031_767_424, 12_414_902_144}, // Sarvam-105B
	} {
		sum := Modules(configtest.Parse(t, `{"model_type":`+keys+`}`)).Sum()
		assert.Equal(t, want, [2]int64{sum.Parameters, sum.Activated}, keys)
	}
}

// TestCacheOfWindows: 3 of 4 layers cache the last 7 tokens alone, and one all; 2 heads of 24.
func TestCacheOfWindows(t *testing.T) {
	c := configtest.Fixture(t, "exaone-moe/checkpoint")
	assert.Equal(t, Cache{Window: 3 * 7 * 96 * 2, Entries: 100 * 96 * 2}, CacheOf(c, 100))
	assert.Equal(t, Cache{Window: 3 * 5 * 96 * 2, Entries: 5 * 96 * 2}, CacheOf(c, 5))
	assert.EqualValues(t, 96*2, KVBytes(c))
	assert.EqualValues(t, (3*7+100)*4*48, AttentionMACs(c, 100))
}

// TestCountsOfIndexedModels: DeepSeek-V3.2 is published as a model of 685 billion parameters, its prediction layer
// included; GLM-5 of 744 billion. A token attends to index_topk positions, an indexer has scores of all.
func TestCountsOfIndexedModels(t *testing.T) {
	c := configtest.Fixture(t, "states/deepseek-v32")
	assert.Equal(t, int64(671_877_944_064+13_477_385_728), Modules(c).Sum().Parameters+MTP(c).Parameters)
	assert.EqualValues(t, 61*(128*320*1000+64*129*1000), AttentionMACs(c, 1000))
	assert.EqualValues(t, 61*(128*320*2048+64*129*4096), AttentionMACs(c, 4096))
	assert.EqualValues(t, 61*2*(512+64+128), KVBytes(c))
	assert.EqualValues(t, 78, Indexers(configtest.Fixture(t, "states/glm-5")))
}

// TestCountsAreSumsOfSlots adds up what the table expands to, weight by weight.
func TestCountsAreSumsOfSlots(t *testing.T) {
	configs, err := filepath.Glob(filepath.Join("..", "..", "fixtures", "*", "checkpoint", "config.json"))
	require.NoError(t, err)
	require.NotEmpty(t, configs)
	for _, path := range configs {
		t.Run(filepath.Base(filepath.Dir(filepath.Dir(path))), func(t *testing.T) {
			c := configtest.Fixture(t, strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../../fixtures/"))
			want := map[table.Module]Total{}
			for s := range table.FamilyOf(c).Slots(c) {
				x := want[s.Row.Module]
				used := int64(1)
				if s.Expert >= c.MoE.NumExpertsPerTok {
					used = 0 // any num_experts_per_tok of them: the first
				}
				x.Module = s.Row.Module
				multiplies := len(s.Shape) == 2 && (x.Module != table.Embedding || c.TieWordEmbeddings)
				switch s.Row.Role {
				case table.TID2EID:
					x.Tensors++
				default:
					x.add(s.Shape, 1, used, multiplies && s.Row.Role != table.PositionBias &&
						s.Row.Role != table.EScoreCorrectionBias)
				}
				want[x.Module] = x
			}
			got := Modules(c)
			require.Len(t, got, len(want))
			for _, x := range got {
				assert.Equal(t, want[x.Module], x)
			}
		})
	}
}

func TestTiedHeadIsMultipliedButNotCountedTwice(t *testing.T) {
	c := configtest.Fixture(t, "v1-rope-linear-tied-bias/checkpoint")
	embedding := Modules(c)[0]
	assert.Equal(t, Total{table.Embedding, 1, 256 * 64, 256 * 64, 256 * 64}, embedding)
	assert.Equal(t, Modules(c).Sum(), Modules(c).Sum(table.Head))
}

func TestDenseModel(t *testing.T) {
	c := configtest.Fixture(t, "v1-dense/checkpoint")
	sum := Modules(c).Sum()
	assert.Equal(t, sum.Parameters, sum.Activated)
	assert.Nil(t, Combinations(c))
}

func TestCombinationsAreExact(t *testing.T) {
	for _, test := range []struct {
		n, k int
		want string
	}{
		{64, 8, "4426165368"},
		{63, 7, "553270671"},
		{128, 12, "23726045489546400"},
		{256, 8, "409663695276000"},
		{1, 1, "1"},
	} {
		t.Run(fmt.Sprintf("C(%d,%d)", test.n, test.k), func(t *testing.T) {
			c := &config.Config{MoE: config.MoE{NRoutedExperts: test.n, NumExpertsPerTok: test.k}}
			assert.Equal(t, test.want, Combinations(c).String())
		})
	}
}

func TestKVBytesFollowHeadsAndDType(t *testing.T) {
	gqa := configtest.Fixture(t, "v1-gqa-norm-freq2/checkpoint")
	assert.EqualValues(t, 2*5*2*16*4, KVBytes(gqa), "float32, 2 of 4 heads")
	base := *configtest.Fixture(t, "v1-base/checkpoint")
	assert.EqualValues(t, 2*4*64*2, KVBytes(&base), "bfloat16")
	base.TorchDType = ""
	assert.EqualValues(t, 2*4*64*2, KVBytes(&base), "no torch_dtype: bfloat16")
}

// TestKVBytesOfLatentAttention: what is cached is the compressed row, and the rotated part
// of the keys that all heads share.
func TestKVBytesOfLatentAttention(t *testing.T) {
	c := configtest.Fixture(t, "states/deepseek-v3")
	assert.EqualValues(t, 61*(512+64)*2, KVBytes(c), "no torch_dtype: bfloat16")
}

// TestMTP adds up DeepSeek-V3's prediction layer by hand: a decoder layer with experts,
// and beside it an embedding, a head, three norms and a projection.
func TestMTP(t *testing.T) {
	const d, heads = 7168, 128
	attention := int64(1536*d + 1536 + heads*192*1536 + (512+64)*d + 512 + heads*256*512 + d*heads*128)
	experts := int64(257*3*2048*d + 256*d + 256)
	got := MTP(configtest.Fixture(t, "states/deepseek-v3"))
	assert.Equal(t, Total{Module: table.MTP, Tensors: 6 + 7 + 2 + 2 + 257*3, Parameters: attention + experts + 2*d + 2*129280*d + 3*d + 2*d*d}, got)
	assert.Zero(t, MTP(configtest.Fixture(t, "states/deepseek-v2-lite")).Tensors)
}

// TestMixtures: where attention is not computed, the mixtures of the classes' defaults count to these billions of parameters.
func TestMixtures(t *testing.T) {
	for modelType, want := range map[string]string{
		"kimi_linear": "47.3", "bailing_hybrid": "121.1", "mimo_v2_flash": "302.8", "qwen3_next": "77.5", "axk2": "19.1",
		"mistral4": "116.9", "hy_v4": "55.0", "beam": "493.3", "kolibri1": "75.7", "laguna": "31.6", "lara_mini": "6.9",
		"longcat_flash": "541.3", "step3p5": "191.0",
	} {
		modules := Modules(configtest.Parse(t, `{"model_type":"`+modelType+`"}`))
		mixtures := modules.Sum(table.Embedding, table.DenseMLP, table.Norms, table.Head)
		assert.Equal(t, want, strconv.FormatFloat(float64(mixtures.Parameters)/1e9, 'f', 1, 64), modelType)
	}
}
