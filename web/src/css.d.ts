// esbuild bundles style sheets that are imported for their side effect.
declare module "*.css";
