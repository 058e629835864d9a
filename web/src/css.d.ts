// esbuild bundles what is imported for its effect.
declare module "*.css";
