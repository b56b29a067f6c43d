package config

// families lists every model_type that Parse accepts, in the order in which errors name them.
var families = []*family{&v1, &v2, &v3, &kimiK2, &glm4MoELite, &axk1, &vl2, &v32, &glmMoEDsa, &v4, &v41,
	&glm4MoE, &dots1, &solarOpen, &hyV3, &minimaxM2, &exaoneMoE, &ernie45MoE}
